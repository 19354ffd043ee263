//! Colours of code in a reply, as it comes: comments, strings, numbers, keywords. Owns what is known of each language.
//! A small scanner in place of a crate. syntect highlights whole lines, which a reply would show late; its patterns can be made
//! slow by a hostile line; it brings a megabyte of grammars, read by bincode, which nobody maintains (RUSTSEC-2025-0141).

use anstyle::Style;

use super::style;

/// The code of one fenced block. Holds back only the word that is not at its end.
#[derive(Clone, Debug, Default)]
pub struct Code {
    /// `None`: all of it in one colour.
    language: Option<&'static Language>,
    within: Within,
    /// A word, or the start of what may open a comment.
    held: String,
    shown: Style,
}

/// What the scanner is in.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Within {
    #[default]
    Code,
    /// A string on one line; `empty` while nothing is in it.
    Text { quote: char, escaped: bool, empty: bool },
    /// Two quotes: an empty string, or the start of a long one.
    TwoQuotes(char),
    /// A string over several lines, which so many marks of a row have begun to end.
    Long { quote: char, ends: u8 },
    /// A comment to the end of the line.
    Comment,
    /// A comment until `*/`; `star`: half of that is there.
    Block { star: bool },
}

/// What is known of a language.
#[derive(Debug)]
struct Language {
    names: &'static [&'static str],
    /// What opens a comment to the end of the line.
    comment: &'static [&'static str],
    /// `/*` and `*/` are a comment.
    blocks: bool,
    quotes: &'static str,
    /// Strings over several lines begin with three quotes.
    long: bool,
    /// Letters of keywords may be large.
    any_case: bool,
    keywords: &'static str,
}

impl Code {
    /// Code of the language that a fence names, if it is known.
    pub fn new(fence: &str) -> Self {
        let name = fence.trim_matches(['`', '~', ' ']).split([' ', ',', '{']).next().unwrap_or_default();
        let name = name.to_ascii_lowercase();
        Self { language: LANGUAGES.iter().find(|one| one.names.contains(&&*name)), ..Self::default() }
    }

    /// Takes the next character of a line.
    pub fn push(&mut self, c: char, out: &mut String) {
        let Some(language) = self.language else {
            self.switch(style::CODE, out);
            out.push(c);
            return;
        };
        match self.within {
            Within::Code => self.code(c, language, out),
            Within::Text { quote, escaped, empty } => {
                if c == quote && !escaped && empty && language.long {
                    self.within = Within::TwoQuotes(quote);
                } else if c == quote && !escaped {
                    self.within = Within::Code;
                } else {
                    self.within = Within::Text { quote, escaped: c == '\\' && !escaped, empty: false };
                }
                self.show(&c.to_string(), style::STRING, out);
            }
            Within::TwoQuotes(quote) if c == quote => {
                self.within = Within::Long { quote, ends: 0 };
                self.show(&c.to_string(), style::STRING, out);
            }
            Within::TwoQuotes(_) => {
                self.within = Within::Code;
                self.code(c, language, out);
            }
            Within::Long { quote, ends } => {
                let ends = if c == quote { ends + 1 } else { 0 };
                self.within = if ends == 3 { Within::Code } else { Within::Long { quote, ends } };
                self.show(&c.to_string(), style::STRING, out);
            }
            Within::Comment => self.show(&c.to_string(), style::DIM, out),
            Within::Block { star } => {
                self.within = if star && c == '/' { Within::Code } else { Within::Block { star: c == '*' } };
                self.show(&c.to_string(), style::DIM, out);
            }
        }
    }

    /// Ends a line: nothing is held, styles are off.
    pub fn end_line(&mut self, out: &mut String) {
        if let Some(language) = self.language {
            self.word(language, out);
        }
        self.within = match self.within {
            within @ (Within::Long { .. } | Within::Block { .. }) => within,
            _ => Within::Code,
        };
        self.switch(Style::new(), out);
    }

    fn code(&mut self, c: char, language: &'static Language, out: &mut String) {
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let is_more = match self.held.chars().next() {
            Some(first) if is_word(first) => is_word(c) || (c == '.' && first.is_ascii_digit()),
            _ => !is_word(c),
        };
        if !is_more {
            self.word(language, out);
        }
        if is_word(c) {
            self.held.push(c);
            if self.held.len() > WORD_MAX {
                self.word(language, out);
            }
            return;
        }
        if self.held.starts_with(is_word) {
            // A point in a number.
            self.held.push(c);
            return;
        }
        let before = self.held.len();
        self.held.push(c);
        let opens = |mark: &&str| self.held == **mark;
        if language.comment.iter().any(opens) {
            self.within = Within::Comment;
        } else if language.blocks && self.held == "/*" {
            self.within = Within::Block { star: false };
        } else if language.comment.iter().chain(language.blocks.then_some(&"/*")).any(|m| m.starts_with(&self.held)) {
            return;
        } else if before > 0 {
            // What was held opens nothing; this character may.
            self.held.pop();
            self.word(language, out);
            self.code(c, language, out);
            return;
        } else if language.quotes.contains(c) {
            self.within = Within::Text { quote: c, escaped: false, empty: true };
            let held = std::mem::take(&mut self.held);
            self.show(&held, style::STRING, out);
            return;
        }
        let style = if self.within == Within::Code { Style::new() } else { style::DIM };
        let held = std::mem::take(&mut self.held);
        self.show(&held, style, out);
    }

    /// Shows what was held.
    fn word(&mut self, language: &Language, out: &mut String) {
        let held = std::mem::take(&mut self.held);
        if held.is_empty() {
            return;
        }
        let lower = held.to_ascii_lowercase();
        let name = if language.any_case { &lower } else { &held };
        let style = if held.starts_with(|c: char| c.is_ascii_digit()) {
            style::NUMBER
        } else if language.keywords.split(' ').any(|keyword| keyword == name) {
            style::KEYWORD
        } else {
            Style::new()
        };
        self.show(&held, style, out);
    }

    fn show(&mut self, text: &str, style: Style, out: &mut String) {
        // Spaces have no colour of their own.
        if !text.trim().is_empty() {
            self.switch(style, out);
        }
        out.push_str(text);
    }

    fn switch(&mut self, style: Style, out: &mut String) {
        if self.shown == style {
            return;
        }
        if self.shown != Style::new() {
            out.push_str(&anstyle::Reset.render().to_string());
        }
        out.push_str(&style.render().to_string());
        self.shown = style;
    }
}

/// Bytes of the longest word that is held back.
const WORD_MAX: usize = 128;

const fn c_like(names: &'static [&'static str], quotes: &'static str, keywords: &'static str) -> Language {
    Language { names, comment: &["//"], blocks: true, quotes, long: false, any_case: false, keywords }
}

const fn script(names: &'static [&'static str], keywords: &'static str) -> Language {
    Language { names, comment: &["#"], blocks: false, quotes: "\"'", long: true, any_case: false, keywords }
}

static LANGUAGES: &[Language] = &[
    c_like(
        &["rust", "rs"],
        "\"",
        "as async await break const continue crate dyn else enum extern false fn for if impl in let loop match mod move mut \
         pub ref return self Self static struct super trait true type unsafe use where while",
    ),
    c_like(
        &["c", "h", "cpp", "c++", "cc", "hpp", "cuda", "objc"],
        "\"'",
        "auto bool break case catch char class const constexpr continue default delete do double else enum explicit extern \
         false float for friend goto if inline int long namespace new nullptr operator private protected public register \
         return short signed sizeof static struct switch template this throw true try typedef typename union unsigned using \
         virtual void volatile while NULL include define ifdef ifndef endif",
    ),
    c_like(
        &["javascript", "js", "jsx", "typescript", "ts", "tsx", "json", "jsonc", "json5"],
        "\"'`",
        "abstract any as async await boolean break case catch class const continue debugger declare default delete do else \
         enum export extends false finally for from function if implements import in instanceof interface keyof let new null \
         number of private protected public readonly return static string super switch this throw true try type typeof \
         undefined unknown var void while yield",
    ),
    c_like(
        &["java", "kotlin", "kt", "scala", "csharp", "cs", "c#", "swift", "dart", "groovy"],
        "\"'",
        "abstract as async await base bool boolean break byte case catch char class companion const continue data def default \
         do double else enum extends extension false final finally float for foreach fun func get guard if implements import \
         in init int interface internal is lateinit let long namespace new nil null object open operator out override package \
         private protected protocol public readonly record ref return sealed self set short static string struct super switch \
         this throw throws trait true try typeof using val var virtual void when where while with yield",
    ),
    c_like(
        &["go", "golang"],
        "\"'`",
        "any bool break byte case chan const continue default defer else error fallthrough false float64 for func go goto if \
         import int interface iota make map nil package range return rune select string struct switch true type uint8 var",
    ),
    c_like(
        &["php"],
        "\"'",
        "abstract array as break case catch class const continue default echo else elseif extends false final finally fn for \
         foreach function global if implements interface match namespace new null print private protected public readonly \
         require return static switch this throw trait true try use var while yield",
    ),
    script(
        &["python", "py", "python3", "starlark", "mojo"],
        "False None True and as assert async await break case class continue def del elif else except finally for from global \
         if import in is lambda match nonlocal not or pass raise return self try while with yield",
    ),
    script(
        &["ruby", "rb", "elixir", "ex", "julia", "jl", "r", "perl", "pl"],
        "alias and begin break case class def defmodule defp do else elsif elseif end ensure false fn for function if import in \
         local loop module my next nil not or our package print require rescue return self struct sub super then true unless \
         until use using when while yield TRUE FALSE NULL",
    ),
    script(
        &["bash", "sh", "shell", "zsh", "fish", "console", "dockerfile", "makefile", "make"],
        "alias break case continue do done elif else esac eval exec exit export fi for function if in local readonly return set \
         shift source then trap unset until while sudo cd echo FROM RUN COPY CMD ENTRYPOINT ENV WORKDIR EXPOSE ARG",
    ),
    script(&["yaml", "yml", "toml", "ini", "properties", "hcl"], "true false null yes no on off"),
    Language {
        names: &["sql", "postgresql", "postgres", "mysql", "sqlite"],
        comment: &["--"],
        blocks: true,
        quotes: "'\"",
        long: false,
        any_case: true,
        keywords: "add all alter and as asc begin between by case check column commit constraint create cross database default \
                   delete desc distinct drop else end exists foreign from full group having if in index inner insert int \
                   integer into is join key left like limit not null offset on or order outer primary references replace right \
                   rollback select set table text then transaction union unique update values varchar view when where with",
    },
    Language {
        names: &["lua", "haskell", "hs", "ada", "vhdl"],
        comment: &["--"],
        blocks: false,
        quotes: "\"",
        long: false,
        any_case: false,
        keywords: "and begin break case class data deriving do else elseif end false for function goto if import in instance is \
                   let local module newtype nil not of or procedure repeat return then true type until where while",
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines of code with marks in place of styles.
    fn shown(fence: &str, text: &str) -> String {
        let (mut code, mut out) = (Code::new(fence), String::new());
        for (i, line) in text.split('\n').enumerate() {
            if i > 0 {
                out.push('\n');
            }
            line.chars().for_each(|c| code.push(c, &mut out));
            code.end_line(&mut out);
        }
        let marks = [
            (style::KEYWORD, "<k>"),
            (style::STRING, "<s>"),
            (style::NUMBER, "<n>"),
            (style::DIM, "<d>"),
            (style::CODE, "<c>"),
        ];
        style::marked(out, &marks)
    }

    #[test]
    fn parts_of_code_have_their_colours() {
        for (fence, text, wanted) in [
            ("```rust", "let x = 1.5; // one", "<k>let <>x = <n>1.5<>; <d>// one<>"),
            ("```rust", "'a / b /* c\n d */ e", "'a / b <d>/* c<>\n <d>d */ <>e"),
            (
                "~~~ Python {.line}",
                "def f(s): return \"a\\\"b\" # x",
                "<k>def <>f(s): <k>return <><s>\"a\\\"b\" <><d># x<>",
            ),
            ("```py", "\"\"\"a\nb\"\"\" + ''", "<s>\"\"\"a<>\n<s>b\"\"\" <>+ <s>''<>"),
            ("```sql", "SELECT a -- b", "<k>SELECT <>a <d>-- b<>"),
            ("```c", "a//b", "a<d>//b<>"),
            ("```js", "let_ = x - 1", "let_ = x - <n>1<>"),
            ("```sql", "a - 1", "a - <n>1<>"),
            ("```", "let x", "<c>let x<>"),
            ("```brainfuck", "+", "<c>+<>"),
        ] {
            assert_eq!(shown(fence, text), wanted, "{fence} {text:?}");
        }
    }

    #[test]
    fn colours_change_no_character() {
        let text = "a/*b*/c'd\"e\"\"\"f\\\n--g//h#i 1.2.x_y`z` \u{4e2d}\u{1f600}/";
        for language in LANGUAGES {
            let marked = shown(&format!("```{}", language.names[0]), text);
            let bare = ["<k>", "<s>", "<n>", "<d>", "<>"].iter().fold(marked, |text, mark| text.replace(mark, ""));
            assert_eq!(bare, text, "{:?}", language.names);
        }
    }
}
