//! Replies that a server kept (`nextn-server --learn`) as texts. Owns which part of a long one is learned from, and which of them
//! belong together.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hasher};
use std::path::Path;

use session::{KeptReply, LoadedModel};
use text::TokenId;

use crate::data::Text;

/// What a folder holds.
pub struct FromUse {
    /// A text for each reply.
    pub texts: Vec<Text>,
    /// Of these, texts that lost their beginning: they were longer than the context.
    pub n_cut: usize,
    /// Files of other models, which are left alone.
    pub n_others: usize,
}

/// The replies of `model` in `folder`, of at most `n_ctx` tokens each.
///
/// # Errors
/// A folder that cannot be read or has no reply of this model; a line that is not a kept reply. The message names its place.
pub fn read(folder: &Path, model: &LoadedModel, n_ctx: usize) -> anyhow::Result<FromUse> {
    let (replies, n_others) = session::read_replies(folder, model.model())?;
    let groups = groups(&replies);
    let n_cut = replies.iter().filter(|kept| kept.n_left_out + kept.prompt.len() + kept.reply.len() > n_ctx).count();
    let texts = replies.iter().zip(groups).map(|(kept, group)| Text { group, ..text(kept, n_ctx) }).collect();
    Ok(FromUse { texts, n_cut, n_others })
}

/// The end of a prompt and its reply, as much of the reply as fits.
fn text(kept: &KeptReply, n_ctx: usize) -> Text {
    let ids = |ids: &[u32]| ids.iter().map(|id| TokenId(*id)).collect::<Vec<_>>();
    let n_reply = kept.reply.len().min(n_ctx.saturating_sub(1));
    let n_prompt = kept.prompt.len().min(n_ctx - n_reply);
    let prompt = &kept.prompt[kept.prompt.len() - n_prompt..];
    let refused = kept.refused.iter().filter(|(at, _)| *at < n_reply).map(|(at, _)| n_prompt + at).collect();
    Text { refused, ..Text::of_reply(&ids(prompt), &ids(&kept.reply[..n_reply])) }
}

/// A number for each reply: turns of one conversation, and replies to one prompt, have the same.
fn groups(replies: &[KeptReply]) -> Vec<usize> {
    // The groups of whole prompts by a hash of their tokens.
    let mut of_prompts: HashMap<u64, usize> = HashMap::new();
    let group = |(i, kept): (usize, &KeptReply)| {
        if kept.n_left_out > 0 {
            return i;
        }
        let (mut hasher, mut hash, mut group) = (DefaultHasher::new(), 0, None);
        for id in &kept.prompt {
            hasher.write_u32(*id);
            hash = hasher.finish();
            group = of_prompts.get(&hash).copied().or(group);
        }
        let group = group.unwrap_or(i);
        of_prompts.insert(hash, group);
        group
    };
    replies.iter().enumerate().map(group).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(prompt: &[u32], reply: &[u32], refused: &[(usize, usize)]) -> KeptReply {
        KeptReply { prompt: prompt.to_vec(), n_left_out: 0, reply: reply.to_vec(), refused: refused.to_vec() }
    }

    #[test]
    fn a_long_prompt_loses_its_beginning_and_refused_positions_stay_where_they_are() {
        let text = text(&kept(&[1, 2, 3, 4], &[5, 6, 7], &[(0, 1), (2, 2)]), 5);
        assert_eq!(text.tokens.iter().map(|id| id.0).collect::<Vec<_>>(), [3, 4, 5, 6, 7]);
        assert_eq!((text.n_counted(), &text.refused[..]), (3, &[2, 4][..]));
        let long = super::text(&kept(&[1, 2], &[5, 6, 7, 8], &[(3, 1)]), 3);
        assert_eq!(long.tokens.iter().map(|id| id.0).collect::<Vec<_>>(), [2, 5, 6]);
        assert!(long.refused.is_empty());
    }

    #[test]
    fn turns_of_one_conversation_belong_together() {
        let all = [kept(&[1, 2], &[3], &[]), kept(&[1, 4], &[3], &[]), kept(&[1, 2, 3, 5], &[6], &[])];
        assert_eq!(groups(&all), [0, 1, 0]);
        let cut = |prompt| KeptReply { n_left_out: 1, ..kept(prompt, &[3], &[]) };
        assert_eq!(groups(&[cut(&[1, 2]), kept(&[1, 2, 3], &[4], &[]), cut(&[1, 2, 3, 4])]), [0, 1, 2]);
    }
}
