//! A file's bytes become an upright picture of 8-bit RGB, within limits that are checked before memory is taken.
//! The format is told by content. Alpha is dropped, of 16 bits the high byte is kept, of an animation the first frame.

use std::io::Cursor;

use image::error::{ImageError, LimitErrorKind};
use image::{DynamicImage, ImageDecoder, ImageFormat, ImageReader, Limits, RgbImage};

use crate::error::VisionError;
use crate::jpeg;
use crate::picture::Picture;

/// What a picture may be before it is resized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeLimits {
    /// Most pixels of a side.
    pub max_side: u32,
    /// Most pixels in all.
    pub max_pixels: u64,
    /// Most bytes that the decoder may take.
    pub max_bytes: u64,
}

impl Default for DecodeLimits {
    /// 65,535 on a side, 64 Mi pixels, 512 MiB: a photograph of 60 megapixels is read, a bomb is not.
    fn default() -> DecodeLimits {
        DecodeLimits { max_side: 65_535, max_pixels: 64 << 20, max_bytes: 512 << 20 }
    }
}

impl Picture {
    /// Decodes a PNG, JPEG, WebP or GIF file.
    ///
    /// # Errors
    /// `Format` where it is none of these, `Large` and `Memory` where it is over a limit, `Damaged` where the data is
    /// broken or cut off.
    pub fn decode(encoded: &[u8], limits: &DecodeLimits) -> Result<Picture, VisionError> {
        let (format, name) = format(encoded)?;
        let damaged = |error| damaged(error, name, limits);
        let mut decoder = opened(encoded, format, name, limits)?;
        let mut own = Limits::no_limits();
        own.max_alloc = Some(limits.max_bytes);
        decoder.set_limits(own).map_err(damaged)?;
        let orientation = orientation(&mut decoder);
        if format == ImageFormat::Jpeg && !jpeg::is_whole(encoded) {
            // The decoder fills what is missing with grey and says nothing.
            return Err(VisionError::Damaged { format: name, reason: "the data ends before the picture does".into() });
        }
        let mut upright = DynamicImage::ImageRgb8(rgb(DynamicImage::from_decoder(decoder).map_err(damaged)?));
        upright.apply_orientation(orientation);
        let rgb = upright.into_rgb8();
        let (width, height) = (rgb.width() as usize, rgb.height() as usize);
        Picture::new(width, height, rgb.into_raw())
            .ok_or_else(|| VisionError::Damaged { format: name, reason: "it has no pixels".into() })
    }

    /// Width and height of the picture that [`Picture::decode`] would give, told by the beginning of the file.
    ///
    /// # Errors
    /// As [`Picture::decode`], but for damage behind the beginning.
    pub fn measure(encoded: &[u8], limits: &DecodeLimits) -> Result<(usize, usize), VisionError> {
        use image::metadata::Orientation::{Rotate90, Rotate90FlipH, Rotate270, Rotate270FlipH};
        let (format, name) = format(encoded)?;
        let mut decoder = opened(encoded, format, name, limits)?;
        let (width, height) = (decoder.dimensions().0 as usize, decoder.dimensions().1 as usize);
        let lies = matches!(orientation(&mut decoder), Rotate90 | Rotate270 | Rotate90FlipH | Rotate270FlipH);
        Ok(if lies { (height, width) } else { (width, height) })
    }
}

/// A decoder that has read the beginning of a picture within `limits`.
fn opened<'a>(
    encoded: &'a [u8],
    format: ImageFormat,
    name: &'static str,
    limits: &DecodeLimits,
) -> Result<impl ImageDecoder + use<'a>, VisionError> {
    let reader = ImageReader::with_format(Cursor::new(encoded), format);
    let decoder = reader.into_decoder().map_err(|error| damaged(error, name, limits))?;
    let (width, height) = decoder.dimensions();
    if width.max(height) > limits.max_side || u64::from(width) * u64::from(height) > limits.max_pixels {
        let DecodeLimits { max_side, max_pixels, .. } = *limits;
        return Err(VisionError::Large { width, height, max_side, max_pixels });
    }
    if decoder.total_bytes() > limits.max_bytes {
        return Err(VisionError::Memory { max_bytes: limits.max_bytes });
    }
    Ok(decoder)
}

/// How a picture is to be turned. A decoder without the key, or a key that is damaged, is a picture that lies as it is stored.
fn orientation(decoder: &mut impl ImageDecoder) -> image::metadata::Orientation {
    decoder.orientation().unwrap_or(image::metadata::Orientation::NoTransforms)
}

fn damaged(error: ImageError, format: &'static str, limits: &DecodeLimits) -> VisionError {
    match error {
        ImageError::Limits(e) if e.kind() != LimitErrorKind::DimensionError => {
            VisionError::Memory { max_bytes: limits.max_bytes }
        }
        e => VisionError::Damaged { format, reason: e.to_string() },
    }
}

/// The format and its name, told by the first bytes.
fn format(encoded: &[u8]) -> Result<(ImageFormat, &'static str), VisionError> {
    let found = match image::guess_format(encoded) {
        Ok(ImageFormat::Png) => return Ok((ImageFormat::Png, "PNG")),
        Ok(ImageFormat::Jpeg) => return Ok((ImageFormat::Jpeg, "JPEG")),
        Ok(ImageFormat::WebP) => return Ok((ImageFormat::WebP, "WebP")),
        Ok(ImageFormat::Gif) => return Ok((ImageFormat::Gif, "GIF")),
        Ok(other) => format!("it looks like {}", other.to_mime_type()),
        Err(_) if encoded.is_empty() => "it is empty".to_owned(),
        Err(_) if is_video(encoded) => "it looks like a video, whose frames are to be sent as pictures".to_owned(),
        Err(_) => {
            let first: Vec<String> = encoded.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
            format!("it begins with the bytes {}", first.join(" "))
        }
    };
    Err(VisionError::Format { found })
}

/// True for what MP4 and QuickTime, Matroska and WebM, and AVI begin with.
fn is_video(encoded: &[u8]) -> bool {
    let at = |offset: usize, bytes: &[u8]| encoded.get(offset..).is_some_and(|rest| rest.starts_with(bytes));
    // HEIC, a picture, lies in the same container.
    let is_picture = [b"heic", b"heix", b"mif1", b"msf1"].iter().any(|brand| at(8, *brand));
    (at(4, b"ftyp") && !is_picture) || at(0, b"\x1a\x45\xdf\xa3") || (at(0, b"RIFF") && at(8, b"AVI "))
}

/// Three channels of 8 bits: of 16 bits the high byte, as grey, palette and colour alike are stored on disk.
fn rgb(image: DynamicImage) -> RgbImage {
    let (width, height) = (image.width(), image.height());
    let high = |v: &u16| (v >> 8) as u8;
    let grey = |v: u8| [v; 3];
    let bytes: Vec<u8> = match image {
        DynamicImage::ImageRgb8(rgb) => return rgb,
        DynamicImage::ImageLuma8(p) => p.into_raw().into_iter().flat_map(grey).collect(),
        DynamicImage::ImageLumaA8(p) => p.as_raw().chunks_exact(2).flat_map(|p| grey(p[0])).collect(),
        DynamicImage::ImageRgba8(p) => p.as_raw().chunks_exact(4).flat_map(|p| [p[0], p[1], p[2]]).collect(),
        DynamicImage::ImageLuma16(p) => p.as_raw().iter().flat_map(|v| grey(high(v))).collect(),
        DynamicImage::ImageLumaA16(p) => p.as_raw().chunks_exact(2).flat_map(|p| grey(high(&p[0]))).collect(),
        DynamicImage::ImageRgb16(p) => p.as_raw().iter().map(high).collect(),
        DynamicImage::ImageRgba16(p) => {
            p.as_raw().chunks_exact(4).flat_map(|p| [0, 1, 2].map(|i| high(&p[i]))).collect()
        }
        other => return other.into_rgb8(),
    };
    RgbImage::from_raw(width, height, bytes).expect("three bytes were made of each pixel")
}
