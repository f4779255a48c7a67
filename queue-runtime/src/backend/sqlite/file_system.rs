//! File systems on which SQLite's log does not work although they claim to support it.

use std::path::Path;

use super::failure::{Failure, Result};

/// Refuses a file on a network file system: processes on several machines cannot share the memory that the log
/// needs, and locks are unreliable.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn check(path: &Path) -> Result<()> {
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

/// Elsewhere, they are not recognised.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn check(_: &Path) -> Result<()> {
    Ok(())
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
