//! What each format's files become, and how files that cannot be read are refused.

use std::io::Cursor;

use image::{DynamicImage, ImageBuffer, ImageFormat, Luma, LumaA, Rgb, Rgba};
use vision::{ContentHash, DecodeLimits, Picture, VisionError};

fn encoded(image: DynamicImage, format: ImageFormat) -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    image.write_to(&mut bytes, format).unwrap();
    bytes.into_inner()
}

/// Decodes; what was measured before must be what comes of it.
fn decode(bytes: &[u8]) -> Result<Picture, VisionError> {
    let measured = Picture::measure(bytes, &DecodeLimits::default());
    let picture = Picture::decode(bytes, &DecodeLimits::default())?;
    assert_eq!(measured.unwrap(), (picture.width(), picture.height()));
    Ok(picture)
}

/// A picture with few frequencies, which JPEG keeps.
fn slope(width: u32, height: u32) -> DynamicImage {
    ImageBuffer::from_fn(width, height, |x, y| Rgb([(x * 4) as u8, (y * 4) as u8, 90])).into()
}

/// 3 x 2 pixels of 2 bits: 0 1 2 / 3 0 1, entry 1 transparent; colours (10, 20, 30), red, green and blue of 200.
#[rustfmt::skip]
const PALETTE: [u8; 107] = [
    137, 80, 78, 71, 13, 10, 26, 10, 0, 0, 0, 13, 73, 72, 68, 82, 0, 0, 0, 3, 0, 0, 0, 2, 2, 3, 0, 0, 0, 224, 26, 142, 137, 0, 0, 0,
    12, 80, 76, 84, 69, 10, 20, 30, 200, 0, 0, 0, 200, 0, 0, 0, 200, 183, 83, 145, 45, 0, 0, 0, 2, 116, 82, 78, 83, 255, 0, 229, 183,
    48, 74, 0, 0, 0, 12, 73, 68, 65, 84, 120, 156, 99, 144, 96, 56, 2, 0, 1, 16, 0, 221, 17, 229, 15, 34, 0, 0, 0, 0, 73, 69, 78, 68,
    174, 66, 96, 130,
];

#[test]
fn alpha_is_dropped_grey_is_tripled_and_of_16_bits_the_high_byte_stays() {
    let one = |image: DynamicImage| decode(&encoded(image, ImageFormat::Png)).unwrap().rgb().to_vec();
    assert_eq!(one(ImageBuffer::from_pixel(1, 1, Rgba([1u8, 2, 3, 0])).into()), [1, 2, 3]);
    assert_eq!(one(ImageBuffer::from_pixel(1, 1, Luma([7u8])).into()), [7; 3]);
    assert_eq!(one(ImageBuffer::from_pixel(1, 1, LumaA([7u8, 9])).into()), [7; 3]);
    assert_eq!(one(ImageBuffer::from_pixel(1, 1, Luma([0x12ff_u16])).into()), [0x12; 3]);
    assert_eq!(one(ImageBuffer::from_pixel(1, 1, LumaA([0x12ff_u16, 0])).into()), [0x12; 3]);
    assert_eq!(one(ImageBuffer::from_pixel(1, 1, Rgb([0x01fe_u16, 0xff00, 0x00ff])).into()), [1, 255, 0]);
    assert_eq!(one(ImageBuffer::from_pixel(1, 1, Rgba([0x01fe_u16, 0xff00, 0x00ff, 3])).into()), [1, 255, 0]);
}

#[test]
fn a_palette_gives_its_colours_also_where_they_are_transparent() {
    let picture = decode(&PALETTE).unwrap();
    assert_eq!((picture.width(), picture.height()), (3, 2));
    assert_eq!(picture.rgb(), [10, 20, 30, 200, 0, 0, 0, 200, 0, 0, 0, 200, 10, 20, 30, 200, 0, 0]);
}

#[test]
fn every_format_is_told_by_its_content() {
    for format in [ImageFormat::Png, ImageFormat::Gif, ImageFormat::WebP, ImageFormat::Jpeg] {
        let picture = decode(&encoded(slope(40, 24), format)).unwrap();
        assert_eq!((picture.width(), picture.height()), (40, 24), "{format:?}");
        let image = slope(40, 24);
        let levels = picture.rgb().iter().zip(image.as_bytes()).map(|(a, b)| u64::from(a.abs_diff(*b)));
        // JPEG rounds frequencies, the encoder of GIF chooses 256 colours.
        let mean = levels.sum::<u64>() as f64 / (40 * 24 * 3) as f64;
        assert!(mean < 8.0, "{format:?}: {mean} levels");
    }
}

#[test]
fn exif_orientation_turns_a_picture_upright() {
    let plain = encoded(slope(32, 16), ImageFormat::Jpeg);
    // TIFF, big-endian, one entry: orientation (0x0112), SHORT, count 1, value 6: turn clockwise.
    let mut exif =
        b"\xff\xe1\x00\x22Exif\0\0MM\0\x2a\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0".to_vec();
    exif.splice(0..0, [0xff, 0xd8]);
    let turned = decode(&[&exif, &plain[2..]].concat()).unwrap();
    let stored = decode(&plain).unwrap();
    assert_eq!((turned.width(), turned.height()), (16, 32));
    // What was lower left is upper left.
    assert_eq!(turned.rgb()[..3], stored.rgb()[3 * 15 * 32..][..3]);
}

#[test]
fn a_file_that_is_cut_off_is_refused_in_words() {
    for format in [ImageFormat::Png, ImageFormat::Gif, ImageFormat::WebP, ImageFormat::Jpeg] {
        let bytes = encoded(slope(60, 60), format);
        for n in [bytes.len() / 2, bytes.len() * 3 / 4, bytes.len() - 20] {
            let error = decode(&bytes[..n]).expect_err(&format!("{format:?}, {n} of {} bytes", bytes.len()));
            assert!(matches!(error, VisionError::Damaged { .. }), "{format:?}: {error}");
            assert!(error.to_string().contains("cut off"), "{error}");
        }
    }
}

#[test]
fn what_is_no_picture_is_named() {
    let said = |bytes: &[u8]| decode(bytes).unwrap_err().to_string();
    assert!(said(b"").contains("it is empty"));
    assert!(said(b"BM6\0\0\0\0\0").contains("image/bmp"));
    for video in [&b"\0\0\0\x20ftypisom\0\0"[..], b"\x1a\x45\xdf\xa3\0\0", b"RIFF\0\0\0\0AVI LIST"] {
        assert!(said(video).contains("a video, whose frames"), "{video:?}");
    }
    assert!(said(b"\0\0\0\x20ftypheic\0\0").contains("begins with the bytes"), "a picture, not a video");
    assert!(said(b"<svg xmlns='http://www.w3.org/2000/svg'/>").contains("3c 73 76 67"));
}

#[test]
fn a_header_that_promises_too_much_is_refused_before_memory_is_taken() {
    // The size of a PNG stands at byte 16; its checksum is of no use to a bomb that never reaches its data.
    let mut bomb = PALETTE.to_vec();
    let resize = |bytes: &mut Vec<u8>, width: u32, height: u32| {
        bytes[16..20].copy_from_slice(&width.to_be_bytes());
        bytes[20..24].copy_from_slice(&height.to_be_bytes());
        let crc = crc32(&bytes[12..29]);
        bytes[29..33].copy_from_slice(&crc.to_be_bytes());
    };
    resize(&mut bomb, 60_000, 60_000);
    assert!(matches!(decode(&bomb), Err(VisionError::Large { width: 60_000, height: 60_000, .. })));
    resize(&mut bomb, 70_000, 1);
    assert!(matches!(decode(&bomb), Err(VisionError::Large { .. })));
    resize(&mut bomb, 8000, 8000);
    let small = DecodeLimits { max_bytes: 1 << 20, ..Default::default() };
    assert_eq!(Picture::decode(&bomb, &small), Err(VisionError::Memory { max_bytes: 1 << 20 }));
    assert!(matches!(decode(&bomb), Err(VisionError::Damaged { .. })));
}

fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
    !bytes.iter().fold(u32::MAX, |crc, &byte| (0..8).fold(crc ^ u32::from(byte), step))
}

#[test]
fn the_hash_is_of_the_file() {
    let hash = ContentHash::of(b"abc").to_string();
    assert_eq!(hash, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    assert_ne!(ContentHash::of(b"abd"), ContentHash::of(b"abc"));
}
