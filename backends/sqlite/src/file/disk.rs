//! What the file system can do: network file systems, which claim to support SQLite's log but do not; mounts of a
//! single file; and the space that puts leave to receives and settlements.
//!
//! SQLite appends each change to the log, a deletion too, and starts the log anew only once the database contains all
//! of it. Log and database cannot grow on a full disk. So that messages can still be received and settled on a full
//! disk:
//!
//! - puts are refused while less than [`Settings::min_free_space`](super::connection::Settings) is left;
//! - the database is brought to its full length after each transaction while space is low;
//! - blocks are allocated for the log in advance, and kept while space is low.

use std::fs::{self, File};
use std::path::Path;

use rusqlite::Connection;

use crate::failure::{Failure, Result};

/// The bytes that the name of a file can have on all common file systems.
const LONGEST_NAME: usize = 255;

/// Refuses a file on a network file system: processes on several machines cannot share the memory that the log
/// needs, and locks are unreliable.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn check_file_system(path: &Path) -> Result<()> {
    // The file may be missing, or a mount of its own.
    let existing = match path.parent() {
        Some(parent) if !path.exists() => parent,
        _ => path,
    };
    let kind = match rustix::fs::statfs(existing) {
        // The width and the sign of the field depend on the platform; the numbers have 32 bits.
        Ok(found) => found.f_type as u32,
        Err(error) => {
            // A sandbox may forbid `statfs`. Whether the file can be used is found out when it is opened.
            tracing::debug!(%error, path = %existing.display(), "failed to recognise the file system");
            return Ok(());
        }
    };
    match network_name(kind) {
        Some(name) => Err(Failure::Network(name)),
        None => Ok(()),
    }
}

/// Returns how many bytes the name of a file can have in the folder of `path`.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn longest_name(path: &Path) -> usize {
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    let found = rustix::fs::statvfs(folder.unwrap_or(Path::new(".")));
    found.map_or(LONGEST_NAME, |found| found.f_namemax as usize)
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn longest_name(_: &Path) -> usize {
    LONGEST_NAME
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn check_file_system(_: &Path) -> Result<()> {
    Ok(())
}

/// Whether a file is itself mounted, without its folder: it then has another path elsewhere, maybe in another namespace.
/// `path` is absolute, without symbolic links.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn is_mount_root(path: &Path) -> bool {
    use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};

    const ROOT: StatxAttributes = StatxAttributes::MOUNT_ROOT;

    // Linux tells mount roots since 5.8.
    if let Ok(found) = statx(CWD, path, AtFlags::empty(), StatxFlags::empty())
        && found.stx_attributes_mask.contains(ROOT)
    {
        return found.stx_attributes.contains(ROOT);
    }
    match fs::read("/proc/self/mountinfo") {
        Ok(mounts) => is_listed(&mounts, path),
        Err(error) => {
            // A sandbox may forbid `/proc`.
            tracing::debug!(%error, path = %path.display(), "failed to find out whether the file is a mount");
            false
        }
    }
}

/// Only Linux and Android mount single files.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn is_mount_root(_: &Path) -> bool {
    false
}

/// Whether `path` is a mount point in the format of `/proc/self/mountinfo`.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn is_listed(mounts: &[u8], path: &Path) -> bool {
    let mut escaped = Vec::new();
    for &byte in path.as_os_str().as_encoded_bytes() {
        match byte {
            b' ' | b'\t' | b'\n' | b'\\' => escaped.extend(format!("\\{byte:03o}").bytes()),
            _ => escaped.push(byte),
        }
    }
    let points = mounts
        .split(|byte| *byte == b'\n')
        .filter_map(|mount| mount.split(|byte| *byte == b' ').nth(4));
    points.into_iter().any(|point| point == escaped)
}

/// Returns the name of a network file system, or of one that shares a host's folder with a virtual machine, by
/// its number in `statfs(2)` or the kernel's source.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn network_name(kind: u32) -> Option<&'static str> {
    Some(match kind {
        0x6969 => "NFS",
        0x517b | 0xfe53_4d42 | 0xff53_4d42 => "SMB",
        0x5346_414f | 0x6b41_4653 => "AFS",
        0x7375_7245 => "Coda",
        0x564c => "NCP",
        0x00c3_6400 => "Ceph",
        0x0bd0_0bd0 => "Lustre",
        0x1983_0326 => "BeeGFS",
        0x0102_1997 => "9P",
        0x786f_4256 => "VirtualBox shared folder",
        0xbacb_acbc => "VMware shared folder",
        _ => return None,
    })
}

/// The default of `SqliteBuilder::min_free_space`, in bytes: more than the log usually contains that the database does
/// not, and the largest operation.
pub(super) const MIN_FREE: u64 = 32 * 1024 * 1024;

/// The length of the log that is allocated in advance, in bytes: twice that at which SQLite moves the log into the
/// database.
const LOG: u64 = 8 * 1024 * 1024;

/// Returns how many bytes messages can still take: what is free on the file system and in the database, without what
/// the database still needs on the disk for pages that are only in the log. What the database needs is looked up only
/// if space is low.
pub(crate) fn left(connection: &Connection, path: &Path, min_free: u64) -> Result<u64> {
    let Some(free) = free(path) else {
        return Ok(u64::MAX);
    };
    if !is_low(free, min_free) {
        return Ok(free);
    }
    let spare = pragma(connection, "freelist_count")? * pragma(connection, "page_size")?;
    Ok((free + spare).saturating_sub(missing(connection, path)?))
}

/// Whether so little is free on the file system that the log may need a part of what puts have to leave.
pub(crate) fn is_low(free: u64, min_free: u64) -> bool {
    free < min_free.saturating_mul(2)
}

/// Returns by how many bytes the database is shorter on the disk than with what is in the log.
pub(crate) fn missing(connection: &Connection, path: &Path) -> Result<u64> {
    let pages = pragma(connection, "page_count")? * pragma(connection, "page_size")?;
    let metadata = fs::metadata(path)?;
    Ok(pages.saturating_sub(metadata.len()))
}

fn pragma(connection: &Connection, name: &str) -> Result<u64> {
    let value: i64 = connection.pragma_query_value(None, name, |row| row.get(0))?;
    Ok(value.unsigned_abs())
}

/// Returns how many bytes of the file system this user may still allocate, if that is known.
#[cfg(unix)]
pub(crate) fn free(path: &Path) -> Option<u64> {
    let found = rustix::fs::statvfs(path).ok()?;
    // Some file systems do not tell their space.
    (found.f_blocks > 0).then(|| found.f_bavail.saturating_mul(found.f_frsize))
}

#[cfg(not(unix))]
pub(crate) fn free(_: &Path) -> Option<u64> {
    None
}

/// Allocates blocks for the log on the disk, without making the file longer. If the allocation fails, the log has no
/// reserve.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn allocate(log: &File) {
    use rustix::fs::{FallocateFlags, fallocate};

    if let Err(error) = fallocate(log, FallocateFlags::KEEP_SIZE, 0, LOG) {
        tracing::debug!(%error, "failed to allocate space for the log in advance");
    }
}

/// Only Linux and Android allocate blocks without making the file longer.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn allocate(_: &File) {}

#[cfg(all(test, any(target_os = "linux", target_os = "android")))]
mod tests {
    use super::*;

    #[test]
    fn network_file_systems_are_refused_and_local_ones_are_not() {
        assert_eq!(network_name(0x6969), Some("NFS"));
        // The kind as a negative number of a narrower field.
        assert_eq!(
            network_name((-1_i64 << 32 | 0xff53_4d42) as u32),
            Some("SMB")
        );
        for (local, kind) in [
            ("ext4", 0xef53),
            ("XFS", 0x5846_5342),
            ("Btrfs", 0x9123_683e),
            ("tmpfs", 0x0102_1994),
            ("overlayfs", 0x794c_7630),
            ("ZFS", 0x2fc1_2fc1),
            ("F2FS", 0xf2f5_2010),
            ("FUSE, which may be either", 0x6573_5546),
        ] {
            assert_eq!(network_name(kind), None, "{local}");
        }
        let directory = tempfile::tempdir().expect("a directory");
        check_file_system(&directory.path().join("missing.db")).expect("it is local");
    }

    #[test]
    fn a_mounted_file_is_found_in_the_list_of_mounts() {
        let mounts = b"22 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n\
            70 22 254:0 /real/a\\040b.db /data/a\\040b\\134.db rw,relatime - ext4 /dev/vda rw\n\
            71 22 254:0 /real /data/folder rw - ext4 /dev/vda rw\n";
        for (path, expected) in [
            ("/data/a b\\.db", true),
            ("/data/folder/queue.db", false),
            ("/real/a b.db", false),
        ] {
            assert_eq!(is_listed(mounts, path.as_ref()), expected, "{path}");
        }
        let directory = tempfile::tempdir().expect("a directory");
        assert!(!is_mount_root(directory.path()));
        let root: &Path = "/proc".as_ref();
        assert!(is_mount_root(root), "it is always a mount");
        let mounts = fs::read("/proc/self/mountinfo").expect("a list");
        assert!(is_listed(&mounts, root));
    }

    #[test]
    fn the_error_says_what_to_do() {
        let error = Failure::Network("NFS").into_error(
            queue_core::Operation::Open,
            None,
            "/mnt/queue.db".as_ref(),
        );
        assert_eq!(error.kind(), queue_core::ErrorKind::Unsupported);
        let text = error.to_string();
        assert!(
            text.contains("`/mnt/queue.db` is on a network file system (NFS)"),
            "{text}"
        );
        assert!(text.contains("local disk"), "{text}");
    }
}
