//! File systems on which SQLite's log does not work although they claim to support it, and mounts of a single file.

use std::path::Path;

use crate::failure::{Failure, Result};

/// The bytes that the name of a file can have on all common file systems.
const LONGEST_NAME: usize = 255;

/// Refuses a file on a network file system: processes on several machines cannot share the memory that the log
/// needs, and locks are unreliable.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn check(path: &Path) -> Result<()> {
    // The file may be missing, or a mount of its own.
    let existing = match path.parent() {
        Some(parent) if !path.exists() => parent,
        _ => path,
    };
    let kind = match rustix::fs::statfs(existing) {
        // The width and the sign of the field depend on the platform; the numbers have 32 bits.
        Ok(found) => found.f_type as u32,
        Err(error) => {
            // A sandbox may forbid it. Whether the file can be used is found out when it is opened.
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
pub(crate) fn longest_name(path: &Path) -> usize {
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    let found = rustix::fs::statvfs(folder.unwrap_or(Path::new(".")));
    found.map_or(LONGEST_NAME, |found| found.f_namemax as usize)
}

/// Elsewhere, all common file systems allow as many.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn longest_name(_: &Path) -> usize {
    LONGEST_NAME
}

/// Elsewhere, they are not recognised.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn check(_: &Path) -> Result<()> {
    Ok(())
}

/// Whether a file is itself mounted, without its folder: it then has another path elsewhere, maybe in another namespace.
/// `path` is absolute, without symbolic links.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn is_mount_root(path: &Path) -> bool {
    use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};

    const ROOT: StatxAttributes = StatxAttributes::MOUNT_ROOT;

    // Linux tells since 5.8.
    if let Ok(found) = statx(CWD, path, AtFlags::empty(), StatxFlags::empty())
        && found.stx_attributes_mask.contains(ROOT)
    {
        return found.stx_attributes.contains(ROOT);
    }
    match std::fs::read("/proc/self/mountinfo") {
        Ok(mounts) => is_listed(&mounts, path),
        Err(error) => {
            // A sandbox may forbid it.
            tracing::debug!(%error, path = %path.display(), "failed to find out whether the file is a mount");
            false
        }
    }
}

/// Elsewhere, only folders are mounted.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn is_mount_root(_: &Path) -> bool {
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

#[cfg(all(test, any(target_os = "linux", target_os = "android")))]
mod tests {
    use super::*;

    #[test]
    fn network_file_systems_are_refused_and_local_ones_are_not() {
        assert_eq!(network_name(0x6969), Some("NFS"));
        // As a negative number of a narrower field.
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
        check(&directory.path().join("missing.db")).expect("it is local");
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
        let mounts = std::fs::read("/proc/self/mountinfo").expect("a list");
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
