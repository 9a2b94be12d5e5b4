//! [`Objects`]: a store of objects for any number of threads, with a runtime of its own.

use std::io;
use std::ops::Deref;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use bytes::Bytes;
use hybrid_blocks::Key;
use object_store::path::Path;
use object_store::{Error as StoreError, ObjectStoreExt as _, PutMode, PutOptions};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::format::{HEADER, decode, encode};
use super::listing::keep_listing;
use super::location::Location;
use super::refusal::is_of_one;
use super::tier::ObjectTier;
use crate::error::Error;
use crate::key::{Namespace, StoredKey};
use crate::lock::{lock, try_lock};
use crate::warning::{Warning, Warnings};

/// Transfers under way at a time, in each direction.
const TRANSFERS: usize = 16;

/// The limits of a store of objects.
#[derive(Clone, Debug)]
pub struct ObjectConfig {
    /// Where objects are kept.
    pub location: Location,
    /// Bytes that may wait for their upload. Chunks beyond them are not stored.
    pub queue_bytes: u64,
    /// How long one read, one write or one page of a listing may take, with all tries.
    pub timeout: Duration,
    /// For how long a store that refused is not used, and how far apart warnings of a kind are.
    pub retry_after: Duration,
    /// How long after a listing the next one begins, which finds what other engines have written.
    pub list_every: Duration,
}

impl ObjectConfig {
    /// A queue of 256 MiB, 30 seconds for an answer, a minute between tries and warnings, five minutes between listings.
    pub fn new(location: Location) -> Self {
        Self {
            location,
            queue_bytes: 256 << 20,
            timeout: Duration::from_secs(30),
            retry_after: Duration::from_secs(60),
            list_every: Duration::from_secs(300),
        }
    }
}

/// State that callers and the runtime share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) location: Location,
    pub(super) namespace: Namespace,
    pub(super) timeout: Duration,
    pub(super) retry_after: Duration,
    pub(super) list_every: Duration,
    tier: Mutex<ObjectTier>,
    /// After an upload, and after a listing.
    pub(super) changed: Condvar,
    uploads: Semaphore,
    reads: Semaphore,
}

impl Shared {
    pub(super) fn tier(&self) -> MutexGuard<'_, ObjectTier> {
        lock(&self.tier)
    }

    /// Notes an error of one object, or of the store.
    fn note_refusal(&self, key: &Key, what: &str, error: &StoreError) {
        if is_of_one(error) {
            self.tier().fail(key, what, error);
        } else {
            self.tier().pause(what, error);
        }
    }

    /// The error of a transfer that timed out.
    pub(super) fn no_answer(&self) -> String {
        format!("no answer in {} s", self.timeout.as_secs_f32())
    }
}

/// A store of objects. Names come from listings, from what is written, and from reads that find nothing, so
/// look-ups wait for nothing. Uploads wait in a queue. All transfers run on one thread of their own.
#[derive(Debug)]
pub struct Objects {
    shared: Arc<Shared>,
    queue_bytes: u64,
    /// `None` once it is closed.
    runtime: Mutex<Option<Runtime>>,
}

impl Objects {
    /// Opens a store and begins to list it. `warn` gets what goes wrong later; a store that does not answer
    /// is one of these things.
    ///
    /// # Errors
    /// [`Error::Io`] where no thread can be started.
    pub fn open(
        config: ObjectConfig,
        namespace: Namespace,
        warn: impl Fn(&Warning) + Send + 'static,
    ) -> Result<Self, Error> {
        let url = config.location.to_string();
        let warnings = Warnings::new(Box::new(warn), config.retry_after);
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("hybrid-blocks-objects")
            .enable_all()
            .build()
            .map_err(Error::io("cannot start a thread for", &url))?;
        let shared = Arc::new(Shared {
            location: config.location,
            namespace,
            timeout: config.timeout,
            retry_after: config.retry_after,
            list_every: config.list_every,
            tier: Mutex::new(ObjectTier::new(url, config.retry_after, warnings)),
            changed: Condvar::new(),
            uploads: Semaphore::new(TRANSFERS),
            reads: Semaphore::new(TRANSFERS),
        });
        runtime.spawn(keep_listing(Arc::clone(&shared)));
        let runtime = Mutex::new(Some(runtime));
        Ok(Self { shared, queue_bytes: config.queue_bytes, runtime })
    }

    /// The tier, for look-ups and counts. No thread holds it while waiting.
    pub fn tier(&self) -> impl Deref<Target = ObjectTier> {
        self.shared.tier()
    }

    /// As [`Objects::tier`], or `None` if another thread has it.
    pub fn try_tier(&self) -> Option<impl Deref<Target = ObjectTier>> {
        try_lock(&self.shared.tier)
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> bool {
        lock(&self.runtime).as_ref().map(|runtime| runtime.spawn(task)).is_some()
    }

    /// Copies chunks (name, tokens and bytes each) into the queue of uploads. Returns how many were taken;
    /// others are there or on their way, or the queue is full, or the store is not used now.
    pub fn store(&self, chunks: &[(Key, u32, &[u8])]) -> usize {
        chunks
            .iter()
            .filter(|(key, num_tokens, bytes)| self.upload(key, *num_tokens, bytes))
            .count()
    }

    fn upload(&self, key: &Key, num_tokens: u32, bytes: &[u8]) -> bool {
        let key = *key;
        let is_chunk = !bytes.is_empty() && u32::try_from(bytes.len()).is_ok();
        let Some(stored) = self.shared.namespace.stored(key).filter(|_| is_chunk) else {
            return false;
        };
        let num_bytes = bytes.len() as u64;
        let begun = self.shared.tier().begin_upload(&key, num_bytes, self.queue_bytes);
        let Some(replace) = begun else { return false };
        let object = encode(stored, num_tokens, bytes);
        let shared = Arc::clone(&self.shared);
        let is_spawned = self.spawn(async move {
            let is_there = put(&shared, stored, object, replace).await;
            shared.tier().end_upload(&key, num_bytes, is_there);
            shared.changed.notify_all();
        });
        if !is_spawned {
            self.shared.tier().end_upload(&key, num_bytes, false);
        }
        is_spawned
    }

    /// Reads chunks, a buffer each, which may be longer than its chunk. One result each:
    /// [`io::ErrorKind::NotFound`] for what is not there, [`io::ErrorKind::InvalidData`] for what is not the
    /// chunk of its key, or has more bytes than its buffer. After any other error the object is not used for
    /// a while, or the store is not. One that does not answer holds this up for the time-out.
    pub fn load(&self, keys: &[Key], buffers: &mut [&mut [u8]]) -> Vec<io::Result<()>> {
        let mut results: Vec<io::Result<()>> =
            keys.iter().map(|_| Err(io::ErrorKind::NotFound.into())).collect();
        let (send, receive) = mpsc::channel();
        for (at, key) in keys.iter().enumerate().take(buffers.len()) {
            let Some(stored) = self.shared.namespace.stored(*key) else { continue };
            let (send, shared) = (send.clone(), Arc::clone(&self.shared));
            let most = buffers[at].len() as u64;
            self.spawn(async move {
                let _ = send.send((at, stored, get(&shared, stored, most).await));
            });
        }
        drop(send);
        for (at, stored, object) in receive {
            results[at] = object.and_then(|object| match decode(stored, &object) {
                Some(chunk) => {
                    buffers[at][..chunk.len()].copy_from_slice(chunk);
                    Ok(())
                }
                None => Err(io::ErrorKind::InvalidData.into()),
            });
            self.note_read(&stored.key, &results[at]);
        }
        results
    }

    fn note_read(&self, key: &Key, result: &io::Result<()>) {
        let mut tier = self.shared.tier();
        match result.as_ref().map_err(io::Error::kind) {
            Err(io::ErrorKind::NotFound) => tier.index.remove(key),
            Err(io::ErrorKind::InvalidData) => tier.damaged(key),
            Ok(()) => tier.succeed(key),
            // The store noted its refusal when it answered.
            Err(_) => {}
        }
    }

    /// Waits until the store has been listed once and nothing waits for its upload; `false` if that takes
    /// longer than `most`.
    pub fn wait(&self, most: Duration) -> bool {
        let tier = self.shared.tier();
        let is_busy = |tier: &mut ObjectTier| tier.num_listings() == 0 || tier.num_uploads() > 0;
        let waited = self.shared.changed.wait_timeout_while(tier, most, is_busy);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Waits for the uploads, no longer than the time-out, and ends the thread. Reads find nothing from then on.
    pub fn close(&self) {
        let is_busy = |tier: &mut ObjectTier| tier.num_uploads() > 0;
        drop(self.shared.changed.wait_timeout_while(
            self.shared.tier(),
            self.shared.timeout,
            is_busy,
        ));
        self.shut_down();
    }

    fn shut_down(&self) {
        if let Some(runtime) = lock(&self.runtime).take() {
            runtime.shutdown_background();
        }
    }
}

impl Drop for Objects {
    /// Chunks that still wait for their upload are lost: waiting here could hold up the end of a
    /// process.
    fn drop(&mut self) {
        self.shut_down();
    }
}

/// Writes an object unless it is there. Returns whether it is there now. A store that refuses is
/// paused before the next transfer may begin. So hanging transfers wait together, not one after
/// another.
async fn put(shared: &Shared, key: StoredKey, object: Bytes, replace: bool) -> bool {
    let Ok(_permit) = shared.uploads.acquire().await else { return false };
    if shared.tier().is_paused() {
        return false;
    }
    let path = shared.location.path_of(key);
    let mode = if replace { PutMode::Overwrite } else { PutMode::Create };
    let put = async {
        match put_as(shared, &path, object.clone(), mode).await {
            // The store has no conditional writes. The last writer puts the same tokens' chunk, and whole.
            Err(StoreError::NotImplemented { .. } | StoreError::NotSupported { .. }) => {
                put_as(shared, &path, object, PutMode::Overwrite).await
            }
            other => other,
        }
    };
    match timeout(shared.timeout, put).await {
        Ok(Ok(()) | Err(StoreError::AlreadyExists { .. } | StoreError::Precondition { .. })) => {
            shared.tier().succeed(&key.key);
            true
        }
        Ok(Err(error)) => {
            shared.note_refusal(&key.key, "writing to", &error);
            false
        }
        Err(_) => {
            shared.tier().pause("writing to", &shared.no_answer());
            false
        }
    }
}

async fn put_as(
    shared: &Shared,
    path: &Path,
    object: Bytes,
    mode: PutMode,
) -> Result<(), StoreError> {
    let options = PutOptions { mode, ..PutOptions::default() };
    shared.location.store.put_opts(path, object.into(), options).await.map(drop)
}

/// An object whose chunk has `most` bytes at most.
async fn get(shared: &Shared, key: StoredKey, most: u64) -> io::Result<Bytes> {
    let _permit = shared.reads.acquire().await.map_err(io::Error::other)?;
    if shared.tier().is_paused() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let get = async {
        let found = shared.location.store.get(&shared.location.path_of(key)).await?;
        let num_bytes = found.meta.size.saturating_sub(HEADER as u64);
        if num_bytes > most {
            return Ok(None);
        }
        found.bytes().await.map(Some)
    };
    match timeout(shared.timeout, get).await {
        Ok(Ok(Some(object))) => Ok(object),
        Ok(Ok(None)) => Err(io::ErrorKind::InvalidData.into()),
        Ok(Err(error @ StoreError::NotFound { .. })) => {
            Err(io::Error::new(io::ErrorKind::NotFound, error))
        }
        Ok(Err(error)) => {
            shared.note_refusal(&key.key, "reading from", &error);
            Err(io::Error::other(error))
        }
        Err(_) => {
            shared.tier().pause("reading from", &shared.no_answer());
            Err(io::ErrorKind::TimedOut.into())
        }
    }
}
