use crate::program::is_installed;

/// Returns the reason if tests cannot record a program's writes: they compile a library that Linux loads
/// before it.
pub(crate) fn obstacle() -> Option<String> {
    if !cfg!(target_os = "linux") {
        return Some("only Linux loads a library before a program as these tests need".to_owned());
    }
    (!is_installed("cc")).then(|| "there is no C compiler `cc`".to_owned())
}
