//! [`PrivateFolder`]: objects in a folder, as files that no other user can read.

use std::collections::VecDeque;
use std::fmt;
use std::fs::{self, File, OpenOptions, ReadDir};
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, Write as _};
use std::path::{Path as FilePath, PathBuf};
use std::time::SystemTime;

use async_trait::async_trait;
use futures_util::StreamExt as _;
use futures_util::stream::{self, BoxStream};
use object_store::path::Path;
use object_store::{
    Attributes, CopyOptions, Error as StoreError, Extensions, GetOptions, GetResult,
    GetResultPayload, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMode,
    PutMultipartOptions, PutOptions, PutPayload, PutResult,
};
use rustix::fs::OFlags;
use tokio::task::spawn_blocking;

use crate::error::Error;
use crate::private;

const NAME: &str = "folder";
/// Names that are read at a time.
const BATCH: usize = 1000;

/// Puts, gets and lists files below a folder. Links, pipes and devices are neither listed nor opened.
#[derive(Clone, Debug)]
pub(super) struct PrivateFolder {
    root: PathBuf,
}

impl PrivateFolder {
    /// Makes the folder if it is not there.
    pub(super) fn open(root: &FilePath) -> Result<Self, Error> {
        private::make_root(root)?;
        Ok(Self { root: root.to_owned() })
    }

    fn path_of(&self, location: &Path) -> PathBuf {
        self.root.join(location.as_ref())
    }

    /// Writes a file beside its place, and then gives it its name in one step.
    fn write(&self, location: &Path, payload: &PutPayload, replace: bool) -> io::Result<()> {
        let path = self.path_of(location);
        let random = RandomState::new().hash_one(std::process::id());
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let beside = path.with_file_name(format!(".{name}.{random:016x}"));
        let file = match create(&beside) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.make_folders(location)?;
                create(&beside)
            }
            other => other,
        }?;
        let result = fill(&file, payload).and_then(|()| name_it(&beside, &path, replace));
        if result.is_err() {
            let _ = fs::remove_file(&beside);
        }
        result
    }

    fn make_folders(&self, location: &Path) -> io::Result<()> {
        let mut folder = self.root.clone();
        let names: Vec<_> = location.parts().collect();
        for name in names.iter().take(names.len().saturating_sub(1)) {
            let name: &str = name.as_ref();
            folder.push(name);
            private::make_below(&folder).map_err(io::Error::other)?;
        }
        Ok(())
    }
}

fn create(path: &FilePath) -> io::Result<File> {
    let mut options = OpenOptions::new();
    private::open(path, options.write(true).create_new(true), OFlags::empty())
}

fn fill(mut file: &File, payload: &PutPayload) -> io::Result<()> {
    private::keep_private(file)?;
    payload.iter().try_for_each(|bytes| file.write_all(bytes))
}

fn name_it(beside: &FilePath, path: &FilePath, replace: bool) -> io::Result<()> {
    if replace {
        return fs::rename(beside, path);
    }
    match fs::hard_link(beside, path) {
        Ok(()) => fs::remove_file(beside),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(error),
        // A file system without such links. Two that write at once write the same chunk.
        Err(_) if fs::symlink_metadata(path).is_ok() => Err(io::ErrorKind::AlreadyExists.into()),
        Err(_) => fs::rename(beside, path),
    }
}

/// A walk through folders, some names at a time.
struct Walk {
    root: PathBuf,
    is_first: bool,
    folders: VecDeque<PathBuf>,
    names: Option<ReadDir>,
}

impl Walk {
    /// The next files; `None` at the end. Files that cannot be read are passed over, but not the
    /// folder itself.
    fn next(&mut self) -> io::Result<Option<Vec<Path>>> {
        let mut found = Vec::new();
        while found.len() < BATCH {
            let Some(names) = &mut self.names else {
                let Some(folder) = self.folders.pop_front() else { break };
                match fs::read_dir(folder) {
                    Ok(names) => self.names = Some(names),
                    Err(error) if self.is_first && error.kind() != io::ErrorKind::NotFound => {
                        return Err(error);
                    }
                    Err(_) => {}
                }
                self.is_first = false;
                continue;
            };
            let Some(entry) = names.next() else {
                self.names = None;
                continue;
            };
            let Ok(entry) = entry else { continue };
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_dir() {
                self.folders.push_back(entry.path());
            } else if kind.is_file() {
                found.extend(self.location_of(&entry.path()));
            }
        }
        Ok((!found.is_empty()).then_some(found))
    }

    fn location_of(&self, path: &FilePath) -> Option<Path> {
        let below = path.strip_prefix(&self.root).ok()?.to_str()?;
        Path::parse(below).ok()
    }
}

/// A file of a listing. Its size is read with the file.
fn listed(location: Path) -> ObjectMeta {
    let last_modified = SystemTime::UNIX_EPOCH.into();
    ObjectMeta { location, last_modified, size: 0, e_tag: None, version: None }
}

fn store_error(location: &Path) -> impl FnOnce(io::Error) -> StoreError {
    let path = location.to_string();
    move |error| match error.kind() {
        io::ErrorKind::NotFound => StoreError::NotFound { path, source: error.into() },
        io::ErrorKind::AlreadyExists => StoreError::AlreadyExists { path, source: error.into() },
        // No regular file, which says nothing of others.
        io::ErrorKind::InvalidInput | io::ErrorKind::PermissionDenied => {
            StoreError::PermissionDenied { path, source: error.into() }
        }
        _ => StoreError::Generic { store: NAME, source: error.into() },
    }
}

fn not_here(operation: &str) -> StoreError {
    StoreError::NotImplemented { operation: operation.to_owned(), implementer: NAME.to_owned() }
}

#[async_trait]
impl ObjectStore for PrivateFolder {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult, StoreError> {
        let replace = match opts.mode {
            PutMode::Create => false,
            PutMode::Overwrite => true,
            PutMode::Update(_) => return Err(not_here("put of a version")),
        };
        let (folder, at) = (self.clone(), location.clone());
        let written = spawn_blocking(move || folder.write(&at, &payload, replace)).await?;
        written.map_err(store_error(location))?;
        Ok(PutResult { e_tag: None, version: None, extensions: Extensions::default() })
    }

    async fn get_opts(
        &self,
        location: &Path,
        options: GetOptions,
    ) -> Result<GetResult, StoreError> {
        if options.range.is_some() {
            return Err(not_here("get of a range"));
        }
        let path = self.path_of(location);
        let open = move || {
            let file = private::open(&path, OpenOptions::new().read(true), OFlags::empty())?;
            let found = file.metadata()?;
            Ok::<_, io::Error>((file, path, found.len(), found.modified()?))
        };
        let opened = spawn_blocking(open).await?;
        let (file, path, size, modified) = opened.map_err(store_error(location))?;
        let last_modified = modified.into();
        let location = location.clone();
        Ok(GetResult {
            payload: GetResultPayload::File(file, path),
            meta: ObjectMeta { location, last_modified, size, e_tag: None, version: None },
            range: 0..size,
            attributes: Attributes::default(),
            extensions: Extensions::default(),
        })
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta, StoreError>> {
        let from = prefix.cloned().unwrap_or_default();
        let folders = VecDeque::from([self.path_of(&from)]);
        let walk = Walk { root: self.root.clone(), is_first: true, folders, names: None };
        let batches = stream::try_unfold(walk, move |mut walk| {
            let from = from.clone();
            async move {
                let (walk, found) = spawn_blocking(|| {
                    let found = walk.next();
                    (walk, found)
                })
                .await?;
                let found = found.map_err(store_error(&from))?;
                Ok::<_, StoreError>(found.map(|found| (found, walk)))
            }
        });
        let metas = batches.map(|batch| match batch {
            Ok(found) => found.into_iter().map(|location| Ok(listed(location))).collect(),
            Err(error) => vec![Err(error)],
        });
        metas.flat_map(stream::iter).boxed()
    }

    async fn put_multipart_opts(
        &self,
        _: &Path,
        _: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>, StoreError> {
        Err(not_here("put in parts"))
    }

    fn delete_stream(
        &self,
        _: BoxStream<'static, Result<Path, StoreError>>,
    ) -> BoxStream<'static, Result<Path, StoreError>> {
        stream::once(async { Err(not_here("delete")) }).boxed()
    }

    async fn list_with_delimiter(&self, _: Option<&Path>) -> Result<ListResult, StoreError> {
        Err(not_here("list with a delimiter"))
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<(), StoreError> {
        Err(not_here("copy"))
    }
}

impl fmt::Display for PrivateFolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.root.display())
    }
}
