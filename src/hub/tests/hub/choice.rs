//! Which files of a repository a name means.

use hub::{HubError, RepoFile, choose};

fn repo(files: &[(&str, u64)]) -> Vec<RepoFile> {
    files.iter().map(|(path, size)| RepoFile { path: (*path).into(), size: *size, sha256: None }).collect()
}

/// Model, head and projector, as paths joined by spaces.
fn chosen(files: &[(&str, u64)], name: &str) -> Result<[String; 3], HubError> {
    let files = repo(files);
    let choice = choose(&files, &name.parse()?)?;
    let paths = |files: &[&RepoFile]| files.iter().map(|f| f.path.as_str()).collect::<Vec<_>>().join(" ");
    Ok([paths(&choice.model), paths(&choice.head), paths(&choice.projector)])
}

fn model(files: &[&str], name: &str) -> String {
    let files: Vec<(&str, u64)> = files.iter().map(|path| (*path, 10)).collect();
    chosen(&files, name).map_or_else(|error| error.to_string(), |[model, ..]| model)
}

/// As repositories of quantised models are published.
const PUBLISHED: &[(&str, u64)] = &[
    ("BF16/m-BF16-00001-of-00002.gguf", 90),
    ("BF16/m-BF16-00002-of-00002.gguf", 90),
    ("UD-Q4_K_XL/m-UD-Q4_K_XL-00001-of-00003.gguf", 30),
    ("UD-Q4_K_XL/m-UD-Q4_K_XL-00002-of-00003.gguf", 30),
    ("UD-Q4_K_XL/m-UD-Q4_K_XL-00003-of-00003.gguf", 30),
    ("m-IQ4_NL.gguf", 40),
    ("m-Q4_K_M.gguf", 45),
    ("m-Q8_0.gguf", 80),
    ("m-UD-Q4_K_M.gguf", 46),
    ("m-imatrix.gguf", 5),
    ("mmproj-BF16.gguf", 3),
    ("mmproj-F16.gguf", 3),
    ("mmproj-F32.gguf", 6),
    ("mtp-m-Q4_0.gguf", 2),
    ("mtp-m-Q8_0.gguf", 4),
];

#[test]
fn a_name_without_quantisation_is_the_usual_one() {
    let paths: Vec<&str> = PUBLISHED.iter().map(|(path, _)| *path).collect();
    assert_eq!(model(&paths, "u/r"), "m-Q4_K_M.gguf");
    assert_eq!(model(&["m-F16.gguf", "m-Q8_0.gguf"], "u/r"), "m-Q8_0.gguf");
    assert_eq!(model(&["m-Q6_K.gguf", "m-F16.gguf"], "u/r"), "m-F16.gguf", "the first by name");
    assert_eq!(model(&["mmproj-Q8_0.gguf", "mtp-Q4_K_M.gguf", "z.gguf"], "u/r"), "z.gguf");
}

#[test]
fn a_quantisation_is_found_whatever_its_letters_and_prefers_the_very_one() {
    let paths: Vec<&str> = PUBLISHED.iter().map(|(path, _)| *path).collect();
    assert_eq!(model(&paths, "u/r:q4_k_m"), "m-Q4_K_M.gguf");
    assert_eq!(model(&paths, "u/r:UD-Q4_K_M"), "m-UD-Q4_K_M.gguf");
    assert_eq!(model(&paths, "u/r:iq4_nl"), "m-IQ4_NL.gguf");
    assert_eq!(model(&paths, "u/r:Q4_K_XL").split(' ').count(), 3);
    assert_eq!(model(&["m-IQ4_XS.gguf", "m-Q4_0.gguf", "m-Q4_0_4_4.gguf"], "u/r:Q4_0"), "m-Q4_0.gguf");
    assert_eq!(model(&["m.i1-Q4_K_M.gguf"], "u/r:Q4_K_M"), "m.i1-Q4_K_M.gguf");
}

#[test]
fn an_unknown_quantisation_lists_what_there_is() {
    let error = chosen(PUBLISHED, "u/r:Q2_K").unwrap_err();
    assert!(matches!(error, HubError::NoFile { .. }), "{error}");
    let error = error.to_string();
    assert!(error.contains("Q2_K") && error.contains("m-Q8_0.gguf") && error.contains("UD-Q4_K_XL-00001"), "{error}");
    assert!(!error.contains("mmproj") && !error.contains("mtp-") && !error.contains("00002-of"), "{error}");
    let many: Vec<(String, u64)> = (0..1000).map(|i| (format!("m{i}-Q8_0.gguf"), 1)).collect();
    let many: Vec<(&str, u64)> = many.iter().map(|(path, size)| (path.as_str(), *size)).collect();
    assert!(chosen(&many, "u/r:Q2_K").unwrap_err().to_string().ends_with("and 960 more"));
    assert!(chosen(&[("README.md", 1)], "u/r").unwrap_err().to_string().ends_with("there are: none"));
}

#[test]
fn heads_and_projectors_are_paired_and_never_the_model() {
    let [model, head, projector] = chosen(PUBLISHED, "u/r:Q4_K_M").unwrap();
    assert_eq!([model.as_str(), &head, &projector], ["m-Q4_K_M.gguf", "mtp-m-Q4_0.gguf", "mmproj-F16.gguf"]);
    let [_, head, _] = chosen(PUBLISHED, "u/r:Q8_0").unwrap();
    assert_eq!(head, "mtp-m-Q8_0.gguf", "the nearest number of bits");
    for name in ["u/r:mtp-m-Q8_0.gguf", "u/r:mmproj-F16.gguf", "u/r:m-imatrix.gguf"] {
        let error = chosen(PUBLISHED, name).unwrap_err();
        assert!(matches!(error, HubError::NoModel { .. }), "{name}: {error}");
    }
    assert!(chosen(&[("mtp-m-Q8_0.gguf", 1), ("mmproj-F16.gguf", 1)], "u/r").is_err());
}

#[test]
fn a_smaller_file_called_mtp_beside_its_model_is_its_head() {
    let files = [("m-Q8_0-mtp.gguf", 10), ("m-Q8_0.gguf", 100)];
    assert_eq!(chosen(&files, "u/r").unwrap()[..2], ["m-Q8_0.gguf".to_owned(), "m-Q8_0-mtp.gguf".to_owned()]);
    // As large as the model it is a model with its layer inside; so is one alone.
    let files = [("m-Q8_0-mtp.gguf", 110), ("m-Q8_0.gguf", 100)];
    assert_eq!(chosen(&files, "u/r:m-Q8_0-mtp.gguf").unwrap()[0], "m-Q8_0-mtp.gguf");
    assert_eq!(chosen(&[("M-MTP-Q4_K_M.gguf", 10)], "u/r").unwrap()[0], "M-MTP-Q4_K_M.gguf");
}

#[test]
fn parts_of_another_folder_are_not_taken() {
    let files = [
        ("a/m-Q8_0.gguf", 9),
        ("b/m-Q4_K_M.gguf", 9),
        ("b/mmproj-F16.gguf", 1),
        ("mtp-m.gguf", 1),
        ("a/mtp-m.gguf", 1),
    ];
    let [_, head, projector] = chosen(&files, "u/r:Q8_0").unwrap();
    assert_eq!((head.as_str(), projector.as_str()), ("a/mtp-m.gguf", ""), "the nearest folder, and none beside");
}

#[test]
fn shards_are_all_chosen_in_order_or_none() {
    let [model, ..] = chosen(PUBLISHED, "u/r:BF16").unwrap();
    assert_eq!(model, "BF16/m-BF16-00001-of-00002.gguf BF16/m-BF16-00002-of-00002.gguf");
    let [by_name, ..] = chosen(PUBLISHED, "u/r:BF16/m-BF16-00002-of-00002.gguf").unwrap();
    assert_eq!(by_name, model);
    let files = [("m-Q8_0-00001-of-00003.gguf", 1), ("m-Q8_0-00003-of-00003.gguf", 1)];
    let error = chosen(&files, "u/r").unwrap_err();
    assert!(matches!(error, HubError::Shards { count: 3, missing: 2, .. }), "{error}");
    let huge = [("m-00001-of-99999.gguf", 1)];
    assert!(matches!(chosen(&huge, "u/r"), Err(HubError::Shards { missing: 2, .. })));
}
