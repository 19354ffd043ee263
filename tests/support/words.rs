//! A small vocabulary for made-up models: all bytes, some merges, special tokens, padding.

/// `n` tokens with their types, and merges.
pub fn vocabulary(n: usize) -> (Vec<String>, Vec<i32>, Vec<String>) {
    let spelled = |byte: u8| char::from_u32(code(byte)).expect("a letter of the byte-level alphabet").to_string();
    let mut tokens: Vec<String> = (0..=255).map(spelled).collect();
    let merges: Vec<String> = ["t h", "th e", "i n", "a n", "o r"].map(str::to_owned).to_vec();
    tokens.extend(merges.iter().map(|merge| merge.replace(' ', "")));
    let mut types = vec![1; tokens.len()];
    for special in ["<|endoftext|>", "<|im_start|>", "<|im_end|>"] {
        tokens.push(special.to_owned());
        types.push(3);
    }
    assert!(n >= tokens.len(), "{n} tokens asked for, {} are needed", tokens.len());
    for id in tokens.len()..n {
        tokens.push(format!("[PAD{id}]"));
        types.push(5);
    }
    (tokens, types, merges)
}

/// The id of `<|endoftext|>`.
pub const END: u32 = 261;

/// The letter that stands for a byte: printable ones for themselves, the others from 256 on, in order.
fn code(byte: u8) -> u32 {
    let printable = |b: u8| matches!(b, 33..=126 | 161..=172 | 174..=255);
    if printable(byte) { byte.into() } else { 256 + (0..byte).filter(|&b| !printable(b)).count() as u32 }
}
