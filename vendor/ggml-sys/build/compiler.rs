//! The C and C++ compilers: that they are there, the flags that all of ggml gets, many groups at once, one library.
//! Knows nothing of what the files are.

use crate::source::Source;
use crate::target::Target;
use crate::variants::{self, Variant};
use crate::{apple, files};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Files that are compiled with the same flags.
pub struct Group {
    /// The copy of the CPU backend that they are part of, where there are several.
    pub variant: Option<&'static Variant>,
    pub build: cc::Build,
}

impl From<cc::Build> for Group {
    fn from(build: cc::Build) -> Group {
        Group { variant: None, build }
    }
}

/// Runs the compilers that `cc` picks on a line of code each.
///
/// # Errors
/// A compiler that is missing or cannot find its own headers; the message says what to install.
pub fn check(target: &Target) -> Result<(), String> {
    for (cpp, language, file, code) in [
        (false, "C", "probe.c", "#include <stdlib.h>\nint main(void) { return 0; }\n"),
        (true, "C++", "probe.cpp", "#include <filesystem>\nint main() { return 0; }\n"),
    ] {
        let tool = tool(target, cpp)?;
        let path = target.out_dir.join(file);
        std::fs::write(&path, code).map_err(|e| format!("{}: {e}", path.display()))?;
        let output = tool.to_command().arg("-c").arg(&path).arg("-o").arg(path.with_extension("o")).output();
        let name = tool.path().display();
        let output = output.map_err(|e| missing(language, &format!("`{name}` did not start: {e}")))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            let what = format!("`{name}` does not compile a line of {language} ({}) {}", output.status, said.trim());
            return Err(missing(language, what.trim()));
        }
    }
    Ok(())
}

/// The compiler that `cc` picks for C++ or C.
///
/// # Errors
/// None is found.
pub fn tool(target: &Target, cpp: bool) -> Result<cc::Tool, String> {
    let language = if cpp { "C++" } else { "C" };
    with_standard(target, cpp).try_get_compiler().map_err(|e| missing(language, &e.to_string()))
}

/// `files` of one language, with what every part of ggml is compiled with. Upstream: `src/CMakeLists.txt`, type Release.
pub fn group<'a>(source: &Source, target: &Target, cpp: bool, files: impl Iterator<Item = &'a &'a str>) -> cc::Build {
    let of_language = |file: &&&str| cpp == file.ends_with(".cpp");
    let mut build = with_standard(target, cpp);
    build
        .files(files.filter(of_language).map(|file| source.src().join(file)))
        .include(source.include())
        .include(source.src());
    for (name, value) in files::DEFINES {
        build.define(name, value);
    }
    if let Some(name) = files::system_define(&target.os) {
        build.define(name, None);
    }
    build
}

/// Always optimised and without assertions, whatever cargo's profile is: a slow ggml helps nobody.
/// The GNU dialects are upstream's; the strict ones would switch the contraction of products and sums off.
fn with_standard(target: &Target, cpp: bool) -> cc::Build {
    let mut build = cc::Build::new();
    build.cpp(cpp).std(if cpp { "gnu++17" } else { "gnu11" });
    build.opt_level(3).debug(false).define("NDEBUG", None).warnings(false).flag("-fvisibility=hidden");
    if target.os == "macos" {
        apple::set_deployment_target(&mut build);
    }
    build
}

/// Compiles `groups`, several at once (cargo's jobs bound the sum), and links them into one static library: one, since the
/// list of backends and the backends call each other.
///
/// # Errors
/// A file that does not compile, with the compiler's words.
pub fn library(groups: &[Group], target: &Target) -> Result<(), String> {
    // A group of one file takes no job of cargo's, so groups are bounded too.
    let n_jobs = std::env::var("NUM_JOBS").ok().and_then(|n| n.parse().ok()).unwrap_or(1).max(1);
    let next = AtomicUsize::new(0);
    let work = || {
        let mine = std::iter::from_fn(|| groups.get(next.fetch_add(1, Ordering::Relaxed)));
        mine.map(|g| Ok((g.variant, g.build.try_compile_intermediates()?))).collect::<Result<Vec<_>, _>>()
    };
    let objects: Result<Vec<Vec<(_, Vec<PathBuf>)>>, cc::Error> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..n_jobs.min(groups.len())).map(|_| scope.spawn(work)).collect();
        running.into_iter().map(|thread| thread.join().expect("cc reports errors, it does not panic")).collect()
    });
    let objects = objects.map_err(|e| format!("ggml does not compile: {e}"))?;
    let mut library = cc::Build::new();
    library.cpp(true);
    let of = |variant| objects.iter().flatten().filter(move |(v, _)| *v == variant).flat_map(|(_, objects)| objects);
    library.objects(of(None));
    for variant in variants::of(target) {
        let objects: Vec<PathBuf> = of(Some(variant)).cloned().collect();
        library.object(variants::join(variant, &objects, target)?);
    }
    if target.os == "windows" {
        library.cpp_link_stdlib(None);
    }
    library.try_compile("ggml").map_err(|e| format!("libggml.a: {e}"))?;
    match target.os.as_str() {
        "linux" => ["m", "pthread", "dl"].iter().for_each(|name| println!("cargo::rustc-link-lib={name}")),
        "windows" => windows(target)?,
        _ => {}
    }
    Ok(())
}

/// Links the C++ library into the programs, so that they need no DLL of the compiler's; and what sockets and the registry are in.
fn windows(target: &Target) -> Result<(), String> {
    let mut ask = tool(target, true)?.to_command();
    let output = ask.arg("-print-file-name=libstdc++.a").output().map_err(|e| format!("{ask:?}: {e}"))?;
    let path = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    // A compiler that has none says the name again.
    let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) else {
        return Err(format!("{ask:?} names no file: Windows programs are built with mingw-w64's g++"));
    };
    println!("cargo::rustc-link-search=native={}", folder.display());
    println!("cargo::rustc-link-lib=static:-bundle=stdc++");
    for name in ["ws2_32", "advapi32"] {
        println!("cargo::rustc-link-lib={name}");
    }
    Ok(())
}

fn missing(language: &str, what: &str) -> String {
    format!(
        "no working {language} compiler: {what}\n\
         ggml is written in C and C++. Install both compilers:\n\
         Debian, Ubuntu: apt install build-essential\n\
         Fedora: dnf install gcc gcc-c++\n\
         macOS: xcode-select --install\n\
         or set CC and CXX to those you have."
    )
}
