/// What a process did to a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operation {
    /// The name of the file, or `.` for its directory.
    pub file: String,
    /// What was done.
    pub change: Change,
}

/// What was done to a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Bytes were written at an offset.
    Write(u64, Vec<u8>),
    /// The file was cut or extended to a length.
    Truncate(u64),
    /// A thread, by its id, started a sync.
    SyncBegun(u64),
    /// The thread's sync has succeeded.
    Synced(u64),
    /// The file was removed from the directory.
    Unlink,
}

/// Parses the records of a shim. A last record that is incomplete is ignored.
///
/// # Panics
/// If a record is not one of the shim's.
#[must_use]
pub fn parse(mut bytes: &[u8]) -> Vec<Operation> {
    let mut operations = Vec::new();
    while let Some((length, rest)) = bytes.split_first_chunk() {
        let length = u32::from_ne_bytes(*length) as usize;
        let Some((record, rest)) = rest.split_at_checked(length) else {
            break;
        };
        operations.push(operation(record).expect("a record of the shim"));
        bytes = rest;
    }
    operations
}

fn operation(record: &[u8]) -> Option<Operation> {
    let (kind, record) = record.split_first()?;
    let (length, record) = record.split_first_chunk()?;
    let (name, record) = record.split_at_checked(u16::from_ne_bytes(*length).into())?;
    let (number, data) = record.split_first_chunk()?;
    let number = u64::from_ne_bytes(*number);
    let change = match kind {
        b'w' => Change::Write(number, data.to_vec()),
        b't' => Change::Truncate(number),
        b'b' => Change::SyncBegun(number),
        b's' => Change::Synced(number),
        b'u' => Change::Unlink,
        _ => return None,
    };
    let file = String::from_utf8(name.to_vec()).ok()?;
    Some(Operation { file, change })
}
