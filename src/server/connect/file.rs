//! A file of settings: reading it, showing what changes, keeping it as it was, and writing it whole or not at all.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use similar::TextDiff;

/// A file as it is.
#[derive(Debug)]
pub(super) struct Settings {
    /// Where it is; a link was followed.
    pub(super) path: PathBuf,
    /// What stands in it; `None`: there is no file yet.
    pub(super) text: Option<String>,
}

impl Settings {
    /// Reads a file.
    ///
    /// # Errors
    /// It is no text, longer than settings are, or cannot be read.
    pub(super) fn read(path: PathBuf) -> anyhow::Result<Self> {
        let path = match fs::canonicalize(&path) {
            Ok(real) => real,
            Err(error) if error.kind() == io::ErrorKind::NotFound => path,
            Err(error) => return Err(error).with_context(|| path.display().to_string()),
        };
        let text = text_of(&path).with_context(|| path.display().to_string())?;
        Ok(Self { path, text })
    }

    /// What is different in `new`, as lines of a diff.
    pub(super) fn change(&self, new: &str) -> String {
        let place = self.path.display().to_string();
        let old = self.text.as_deref().unwrap_or_default();
        TextDiff::from_lines(old, new).unified_diff().context_radius(2).header(&place, &place).to_string()
    }

    /// Puts `new` in the place of the file; gives the copy of the file as it was.
    ///
    /// # Errors
    /// The file has changed since it was read; what the file system says. The file is then as it was.
    pub(super) fn replace(&self, new: &str) -> anyhow::Result<Option<PathBuf>> {
        let path = &self.path;
        let folder = path.parent().context("a file in a folder is expected")?;
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        if text_of(path)? != self.text {
            bail!("{}: the file has changed since it was read: try again", path.display());
        }
        let access = Access::of(path);
        let backup = self.text.as_deref().map(|old| backup(path, old, &access)).transpose()?;
        let mut part = tempfile::NamedTempFile::new_in(folder).with_context(|| folder.display().to_string())?;
        part.write_all(new.as_bytes())?;
        access.give(part.as_file())?;
        part.as_file().sync_all()?;
        part.persist(path).with_context(|| path.display().to_string())?;
        Ok(backup)
    }
}

/// Who may read a file: a key may stand in it. Elsewhere than on Unix the folder says so.
struct Access {
    #[cfg(unix)]
    mode: u32,
}

impl Access {
    /// As `path` has it; its owner alone where there is no such file.
    fn of(path: &Path) -> Self {
        #[cfg(not(unix))]
        let _ = path;
        Self {
            #[cfg(unix)]
            mode: fs::metadata(path)
                .map_or(0o600, |file| std::os::unix::fs::PermissionsExt::mode(&file.permissions()) & 0o777),
        }
    }

    fn give(&self, file: &File) -> io::Result<()> {
        #[cfg(unix)]
        file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(self.mode))?;
        #[cfg(not(unix))]
        let _ = file;
        Ok(())
    }

    /// A new file that never had more readers.
    fn create(&self, path: &Path) -> io::Result<File> {
        let mut options = OpenOptions::new();
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, self.mode);
        options.write(true).create_new(true).open(path)
    }
}

/// `None` where there is no file.
fn text_of(path: &Path) -> anyhow::Result<Option<String>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    if !file.metadata()?.is_file() {
        bail!("a plain file is expected");
    }
    let mut text = String::new();
    let n = file.take(MAX_BYTES + 1).read_to_string(&mut text).context("a text file is expected")?;
    if n as u64 > MAX_BYTES {
        bail!("settings have at most {MAX_BYTES} bytes");
    }
    Ok(Some(text))
}

/// A copy beside the file, under the first name that is free.
fn backup(path: &Path, text: &str, access: &Access) -> anyhow::Result<PathBuf> {
    for i in 0..MAX_BACKUPS {
        let number = if i == 0 { String::new() } else { format!(".{i}") };
        let copy = PathBuf::from(format!("{}.bak{number}", path.display()));
        match access.create(&copy) {
            Ok(mut file) => {
                file.write_all(text.as_bytes())
                    .and_then(|()| file.sync_all())
                    .with_context(|| copy.display().to_string())?;
                return Ok(copy);
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error).with_context(|| copy.display().to_string()),
        }
    }
    bail!("{}.bak and {MAX_BACKUPS} more are there: remove some", path.display())
}

const MAX_BYTES: u64 = 4 << 20;
const MAX_BACKUPS: usize = 1000;

#[cfg(test)]
mod tests {
    #[cfg(unix)]
    use std::fs::Permissions;
    #[cfg(unix)]
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[cfg(unix)]
    #[test]
    fn the_file_as_it_was_stands_beside_it_and_links_stay_links() {
        let folder = tempfile::tempdir().unwrap();
        let (real, link) = (folder.path().join("real.toml"), folder.path().join("config.toml"));
        fs::write(&real, "a = 1\n").unwrap();
        fs::set_permissions(&real, Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        for (old, new, copy) in [("a = 1\n", "a = 2\n", "real.toml.bak"), ("a = 2\n", "a = 3\n", "real.toml.bak.1")] {
            let settings = Settings::read(link.clone()).unwrap();
            assert!(settings.change(new).contains(&format!("-{old}+{new}")), "{}", settings.change(new));
            let backup = settings.replace(new).unwrap().unwrap();
            assert!(backup.ends_with(copy) && fs::read_to_string(&backup).unwrap() == old, "{backup:?}");
            assert_eq!(fs::read_to_string(&link).unwrap(), new);
        }
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::metadata(&real).unwrap().permissions().mode() & 0o777, 0o640);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 4, "nothing else is left");
    }

    #[test]
    fn a_new_file_is_its_owners_alone_and_one_that_changed_meanwhile_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/settings.json");
        let settings = Settings::read(path.clone()).unwrap();
        assert!(settings.text.is_none());
        assert_eq!(settings.replace("{}\n").unwrap(), None);
        #[cfg(unix)]
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(settings.replace("{\"a\": 1}\n").unwrap_err().to_string().contains("has changed"));
        assert_eq!(fs::read_to_string(&path).unwrap(), "{}\n");
        fs::write(&path, [0xff, 0xfe]).unwrap();
        assert!(Settings::read(path).is_err(), "no text");
        assert!(Settings::read(folder.path().to_owned()).is_err(), "a folder");
    }
}
