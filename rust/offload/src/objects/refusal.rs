//! The scope of an error of a store: one object, or the store.

use std::error::Error;
use std::io;

use object_store::Error as StoreError;

/// Keys that may fail in a row before the store is taken to be at fault.
pub(super) const MOST_IN_A_ROW: u32 = 3;

/// Errors of the system that one file alone can have: an I/O error, a link to itself, a name that is too long.
const OF_ONE_FILE: [i32; 3] = [
    rustix::io::Errno::IO.raw_os_error(),
    rustix::io::Errno::LOOP.raw_os_error(),
    rustix::io::Errno::NAMETOOLONG.raw_os_error(),
];

/// Whether an error may be that of one object, while others can be read and written: access to it is denied,
/// or its file is none.
pub(super) fn is_of_one(error: &StoreError) -> bool {
    match error {
        StoreError::PermissionDenied { .. }
        | StoreError::InvalidPath { .. }
        | StoreError::NotModified { .. }
        | StoreError::JoinError { .. } => true,
        StoreError::Generic { .. } => of_system(error).is_some_and(|error| {
            let is_of_kind = matches!(
                error.kind(),
                io::ErrorKind::PermissionDenied | io::ErrorKind::IsADirectory
            );
            is_of_kind || error.raw_os_error().is_some_and(|it| OF_ONE_FILE.contains(&it))
        }),
        _ => false,
    }
}

/// The operating system's error behind another one.
fn of_system(error: &StoreError) -> Option<&io::Error> {
    let mut next: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref() {
            return Some(error);
        }
        next = error.source();
    }
    None
}
