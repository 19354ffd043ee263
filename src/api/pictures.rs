//! Images in requests, and frames of videos: the parts that hold them become encoded bytes beside the conversation.
//! Owns data URIs and what becomes of an image where the model reads none. Knows neither formats of images nor models.

use std::sync::Arc;

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde_json::{Value, json};
use session::{Conversation, Video};

use crate::error::{ApiError, shortened};
use crate::fetch::Fetcher;
use crate::form::left_out;

/// A part of a message with the image at a URL, in OpenAI's form.
pub(crate) fn part(url: &str) -> Value {
    json!({ "type": "image_url", "image_url": { "url": url } })
}

/// The same of an image in base64.
pub(crate) fn part_of_base64(encoded: &str) -> Value {
    match encoded.starts_with("data:") {
        true => part(encoded),
        false => part(&format!("data:;base64,{encoded}")),
    }
}

/// Whether a conversation has images.
pub(crate) fn are_in(conversation: &Conversation) -> bool {
    let messages = conversation.messages.iter();
    messages
        .flat_map(|message| message.get("content").and_then(Value::as_array))
        .flatten()
        .any(|part| is_image(part) || is_video(part))
}

/// A conversation whose images are bytes beside it. A model that does not see is told of images in results of tools, which its
/// user cannot take back; others are refused later, unread.
///
/// # Errors
/// 400 for an image that cannot be read, with its place; what `go_on` says before each.
pub(crate) fn taken(
    mut conversation: Conversation,
    sees: bool,
    fetcher: Option<&Fetcher>,
    go_on: impl Fn() -> Result<(), ApiError>,
) -> Result<Conversation, ApiError> {
    let (mut total, mut n_frames) = (0, 0);
    for (i, message) in conversation.messages.iter_mut().enumerate() {
        let is_result = message.get("role").and_then(Value::as_str) == Some("tool");
        let parts = message.get_mut("content").and_then(Value::as_array_mut);
        for (k, part) in parts.into_iter().flatten().enumerate().filter(|(_, part)| is_image(part) || is_video(part)) {
            let is_lost = is_result && !sees;
            let kind = if is_video(part) { "video" } else { "image" };
            let new = if is_lost { json!({ "type": "text", "text": left_out(kind) }) } else { json!({ "type": kind }) };
            let old = std::mem::replace(part, new);
            if !sees {
                continue;
            }
            let at = format!("messages[{i}].content[{k}]");
            let wrong = |what: &str| ApiError::field("messages", format!("{at}: {what}"));
            let heavy = || wrong(&format!("the images of a request have {} MiB at most", MAX_BYTES >> 20));
            if kind == "video" {
                let (frames, fps) = frames_of(&old).map_err(|what| wrong(&what))?;
                n_frames += frames.len();
                if n_frames > MAX_FRAMES {
                    return Err(wrong(&format!("{MAX_FRAMES} frames of a request are the most: leave some out")));
                }
                let frames = frames.into_iter().enumerate().map(|(n, frame)| {
                    go_on()?;
                    let bytes = match frame {
                        Frame::Base64(data) => of_base64(data),
                        Frame::Url(url) => bytes_of(url, fetcher),
                    };
                    let bytes = bytes.map_err(|what| wrong(&format!("frame {}: {what}", n + 1)))?;
                    total += bytes.len();
                    if total > MAX_BYTES { Err(heavy()) } else { Ok(bytes) }
                });
                conversation.videos.push(Video { frames: frames.collect::<Result<_, _>>()?, fps, ..Video::default() });
                continue;
            }
            if conversation.pictures.len() == MAX_IMAGES {
                return Err(wrong(&format!("{MAX_IMAGES} images of a request are the most")));
            }
            let url = old.get("image_url").and_then(|url| url.get("url").unwrap_or(url).as_str());
            let url = url.ok_or_else(|| wrong("image_url: an object with a `url` is expected"))?;
            go_on()?;
            let bytes = bytes_of(url, fetcher).map_err(|what| wrong(&what))?;
            total += bytes.len();
            if total > MAX_BYTES {
                return Err(heavy());
            }
            conversation.pictures.push(bytes);
        }
    }
    Ok(conversation)
}

fn is_image(part: &Value) -> bool {
    matches!(part.get("type").and_then(Value::as_str), Some("image_url" | "input_image"))
}

/// Whether a part of a message is a video.
pub(crate) fn is_video(part: &Value) -> bool {
    matches!(part.get("type").and_then(Value::as_str), Some("video_url" | "video" | "input_video"))
}

/// A frame of a video as it was sent.
enum Frame<'a> {
    Base64(&'a str),
    Url(&'a str),
}

/// The frames of a part of type `video_url`, as vLLM's clients send them, `input_video`, as llama.cpp's do, or `video`, as Qwen's
/// tools do; and how many of them are shown a second.
fn frames_of(part: &Value) -> Result<(Vec<Frame<'_>>, f64), String> {
    let rate = |keys: &[&str], default: f64| {
        let given = keys.iter().find_map(|key| part.pointer(key).filter(|fps| !fps.is_null()));
        let Some(given) = given else { return Ok(default) };
        let fps = given.as_f64().or_else(|| given.as_str()?.parse().ok());
        fps.filter(|fps| fps.is_finite() && *fps > 0.0)
            .ok_or_else(|| format!("fps: {} found, a number above 0 expected", shortened(&given.to_string())))
    };
    if let Some(video) = part.get("video") {
        let listed = video.as_array().ok_or(NO_FILES)?;
        let frames = listed.iter().map(|frame| frame.as_str().map(Frame::Url));
        let frames = frames.collect::<Option<_>>().ok_or("video: a list of frames expected, each a data URI")?;
        return Ok((frames, rate(&["/fps", "/sample_fps"], 2.0)?));
    }
    let url = part.get("video_url").or_else(|| part.get("input_video"));
    let url = url.and_then(|url| url.get("url").or_else(|| url.get("data")).unwrap_or(url).as_str());
    let url = url.ok_or("an object `video_url` with a `url`, or `video` with a list of frames, is expected")?;
    let is_list = url.get(..FRAMES.len()).is_some_and(|head| head.eq_ignore_ascii_case(FRAMES));
    let frames = if is_list { &url[FRAMES.len()..] } else { return Err(NO_FILES.to_owned()) };
    Ok((frames.split(',').map(Frame::Base64).collect(), rate(&["/fps", "/video_url/fps", "/input_video/fps"], 1.0)?))
}

/// How a data URI begins that is a list of frames.
const FRAMES: &str = "data:video/jpeg;base64,";
const NO_FILES: &str = "video files are not decoded here: send frames of the video as images, in one URI \
                        (data:video/jpeg;base64,FRAME,FRAME,...) or as {\"type\": \"video\", \"video\": [\"data:image/jpeg;base64,...\", ...], \
                        \"fps\": 2}";

/// The bytes of a data URI, or of an address of the web where these are fetched.
fn bytes_of(url: &str, fetcher: Option<&Fetcher>) -> Result<Arc<[u8]>, String> {
    let scheme = url.split_once(':').map(|(scheme, _)| scheme.to_ascii_lowercase());
    match (scheme.as_deref(), fetcher) {
        (Some("data"), _) => {
            let (head, data) = url.split_once(',').ok_or("a data URI has a comma before its data")?;
            match head.ends_with(";base64") {
                true => of_base64(data),
                false => Err("a data URI in base64 is expected: data:image/png;base64,...".to_owned()),
            }
        }
        (Some("http" | "https"), Some(fetcher)) => fetcher.get(url),
        (Some("http" | "https"), None) => {
            Err("this server fetches no images: send a data URI (data:image/png;base64,...), or start it with --allow-image-urls".to_owned())
        }
        _ => Err(format!("a data URI (data:image/png;base64,...) is expected, `{}` found", shortened(url))),
    }
}

/// # Errors
/// It is no base64.
pub(crate) fn of_base64(text: &str) -> Result<Arc<[u8]>, String> {
    let engine = GeneralPurpose::new(
        &STANDARD,
        GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
    );
    // Some encoders break lines.
    let bytes = match text.bytes().any(|b| b.is_ascii_whitespace()) {
        true => engine.decode(text.bytes().filter(|b| !b.is_ascii_whitespace()).collect::<Vec<u8>>()),
        false => engine.decode(text),
    };
    bytes.map(Into::into).map_err(|error| format!("the image's base64 cannot be read: {error}"))
}

/// Of one request.
const MAX_IMAGES: usize = 256;
const MAX_FRAMES: usize = 768;
const MAX_BYTES: usize = 256 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    const ALWAYS: fn() -> Result<(), ApiError> = || Ok(());

    fn conversation(role: &str, content: Value) -> Conversation {
        Conversation { messages: vec![json!({ "role": role, "content": content })], ..Conversation::default() }
    }

    #[test]
    fn images_are_bytes_beside_the_messages_in_their_order() {
        let content = json!([
            { "type": "image_url", "image_url": { "url": "data:image/png;base64,aGk=" } },
            { "type": "text", "text": "and" },
            { "type": "image_url", "image_url": "data:;base64,aG\n8" },
            part_of_base64("aGE="),
        ]);
        let conversation = conversation("user", content);
        assert!(are_in(&conversation));
        let taken = taken(conversation, true, None, ALWAYS).unwrap();
        let pictures: Vec<&[u8]> = taken.pictures.iter().map(|bytes| &bytes[..]).collect();
        assert_eq!(pictures, [b"hi", b"ho", b"ha"]);
        let image = json!({ "type": "image" });
        let text = json!({ "type": "text", "text": "and" });
        assert_eq!(taken.messages[0]["content"], json!([image, text, image, image]));
        assert!(!are_in(&taken));
    }

    #[test]
    fn frames_are_read_in_both_forms() {
        let url = |fps: Value| json!({ "type": "video_url", "video_url": { "url": "data:video/jpeg;base64,aGk=,aG8=" }, "fps": fps });
        let list = |fps: Value| json!({ "type": "video", "video": ["data:image/png;base64,aGE=", "data:;base64,aGk="], "sample_fps": fps });
        let of_llama =
            json!({ "type": "input_video", "input_video": { "data": "data:video/jpeg;base64,aGk=", "fps": 8 } });
        let content = json!([
            url(Value::Null),
            list(json!("0.5")),
            url(json!(4)),
            list(Value::Null),
            part_of_base64("aGE="),
            of_llama
        ]);
        let conversation = conversation("user", content);
        assert!(are_in(&conversation));
        let taken = taken(conversation, true, None, ALWAYS).unwrap();
        let fps: Vec<f64> = taken.videos.iter().map(|video| video.fps).collect();
        assert_eq!((fps, taken.pictures.len()), (vec![1.0, 0.5, 4.0, 2.0, 8.0], 1));
        let frames: Vec<&[u8]> = taken.videos[..2].iter().flat_map(|video| &video.frames).map(|f| &f[..]).collect();
        assert_eq!(frames, [b"hi", b"ho", b"ha", b"hi"]);
        let kinds = [3, 4].map(|i| taken.messages[0]["content"][i]["type"].as_str().unwrap());
        assert_eq!(kinds, ["video", "image"]);
    }

    #[test]
    fn what_is_no_list_of_frames_is_told_what_to_send() {
        let url = |url: &str| json!({ "type": "video_url", "video_url": { "url": url } });
        let frame = "data:;base64,aGk=";
        for (video, words) in [
            (url("data:video/mp4;base64,aGk="), "send frames"),
            (url("https://example.org/a.mp4"), "send frames"),
            (json!({ "type": "video", "video": "file:///a.mp4" }), "send frames"),
            (json!({ "type": "video" }), "`video_url`"),
            (json!({ "type": "video", "video": [1] }), "list of frames"),
            (json!({ "type": "video", "video": [frame, "/etc/passwd"] }), "frame 2: a data URI"),
            (json!({ "type": "video", "video": [frame], "fps": 0 }), "fps: 0 found"),
            (url("data:video/jpeg;base64,aGk=,*"), "frame 2: the image's base64"),
            (json!({ "type": "video", "video": vec![frame; MAX_FRAMES + 1] }), "768 frames"),
        ] {
            let error = taken(conversation("user", json!([video])), true, None, ALWAYS).unwrap_err();
            assert!(error.message.starts_with("messages[0].content[0]: ") && error.message.contains(words), "{error}");
        }
        let blind = taken(conversation("tool", json!([url("x")])), false, None, ALWAYS).unwrap();
        assert_eq!(blind.messages[0]["content"][0]["text"], "[video left out]");
    }

    #[test]
    fn a_blind_model_hears_of_images_in_results_and_is_refused_the_others() {
        let blind = |role: &str| taken(conversation(role, json!([part("file:///x")])), false, None, ALWAYS).unwrap();
        assert_eq!(blind("tool").messages[0]["content"][0]["text"], "[image left out]");
        let refused = blind("user");
        assert_eq!((&refused.messages[0]["content"][0]["type"], refused.pictures.len()), (&json!("image"), 0));
    }

    #[test]
    fn what_is_no_image_is_told_with_its_place() {
        for (image, words) in [
            (part("data:image/png;base64,*"), "base64"),
            (part("data:image/png,abc"), "base64"),
            (part("data:image/png;base64"), "comma"),
            (part("file:///etc/passwd"), "a data URI"),
            (part("https://example.org/a.png"), "--allow-image-urls"),
            (part("/etc/passwd"), "a data URI"),
            (json!({ "type": "image_url" }), "`url`"),
            (json!({ "type": "input_image", "file_id": "f" }), "`url`"),
        ] {
            let error = taken(conversation("user", json!([image])), true, None, ALWAYS).unwrap_err();
            assert!(error.message.starts_with("messages[0].content[0]: ") && error.message.contains(words), "{error}");
        }
        let many = vec![part("data:;base64,aGk="); MAX_IMAGES + 1];
        let error = taken(conversation("user", many.into()), true, None, ALWAYS).unwrap_err();
        assert!(error.message.contains("256 images"), "{error}");
    }
}
