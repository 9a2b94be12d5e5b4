//! The listing of a store: what it held before this process, and what others have written since.

use std::str::FromStr as _;
use std::sync::Arc;

use futures_util::StreamExt as _;
use hybrid_blocks::{Digest, GroupId, Key};
use object_store::path::Path;
use tokio::time::{sleep, timeout};

use super::refusal::is_of_one;
use super::shared::Shared;
use crate::key::Namespace;
use crate::layout::LayoutVersion;

/// Names that are taken over under one lock.
const BATCH: usize = 1000;

/// Lists for as long as the store is open.
pub(super) async fn keep_listing(shared: Arc<Shared>) {
    loop {
        shared.tier().index.begin_listing();
        let wait = match list(&shared).await {
            Ok(()) => {
                shared.tier().end_listing();
                shared.list_every
            }
            Err(error) => {
                shared.tier().pause("listing", &error);
                shared.retry_after
            }
        };
        shared.changed.notify_all();
        sleep(wait).await;
    }
}

async fn list(shared: &Shared) -> Result<(), String> {
    for layout in shared.namespace.layouts() {
        let folder = shared.location.prefix.clone().join(format!("{layout:?}"));
        let mut names = shared.location.store.list(Some(&folder)).ready_chunks(BATCH);
        loop {
            let next = timeout(shared.timeout, names.next()).await;
            let Some(batch) = next.map_err(|_| shared.no_answer())? else {
                break;
            };
            let mut tier = shared.tier();
            for object in batch {
                let path = match object {
                    Ok(object) => object.location,
                    Err(error) if is_of_one(&error) => {
                        tier.passed_by(&error);
                        continue;
                    }
                    Err(error) => return Err(error.to_string()),
                };
                if let Some(key) = key_of(&path, &folder, &shared.namespace, layout) {
                    tier.index.see(&key);
                }
            }
        }
    }
    Ok(())
}

/// The key whose object has this path; `None` for what is not ours.
fn key_of(path: &Path, folder: &Path, namespace: &Namespace, layout: LayoutVersion) -> Option<Key> {
    let mut parts = path.prefix_match(folder)?;
    let (group, digest) = (parts.next()?, parts.next()?);
    let digest = Digest::from(from_hex(digest.as_ref())?);
    let key = Key { digest, group: GroupId(u32::from_str(group.as_ref()).ok()?) };
    let is_ours = parts.next().is_none() && namespace.stored(key)?.layout == layout;
    is_ours.then_some(key)
}

fn from_hex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (byte, at) in bytes.iter_mut().zip((0..64).step_by(2)) {
        *byte = u8::from_str_radix(&text[at..at + 2], 16).ok()?;
    }
    Some(bytes)
}
