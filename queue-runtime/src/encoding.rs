//! How bodies travel: any bytes where the backend carries them, otherwise text.

use bytes::Bytes;
use queue_core::backend::{BodyForm, Capabilities};
use queue_core::wire::{to_base64, xml_text};

/// How a service writes bodies where the storage carries only text, as Azure Queue Storage does.
///
/// What is read does not depend on it: either is recognised.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum MessageEncoding {
    /// As Base64, which the Functions host expects unless it is told otherwise.
    #[default]
    Base64,
    /// As it is, so that other programs and tools read the JSON without decoding it. A body that XML
    /// does not carry, or that takes more room there than is allowed, is written as Base64.
    Text,
}

/// A choice of encoding for what a backend carries.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Encoder {
    form: BodyForm,
    max_body: usize,
    encoding: MessageEncoding,
}

impl Encoder {
    pub(crate) fn new(capabilities: &Capabilities, encoding: MessageEncoding) -> Self {
        Self {
            form: capabilities.body,
            max_body: capabilities.max_body,
            encoding,
        }
    }

    /// What a body becomes on its way into the backend.
    pub(crate) fn stored(self, body: Vec<u8>) -> Bytes {
        match (self.form, self.encoding) {
            (BodyForm::Text, MessageEncoding::Text) if self.fits_as_text(&body) => body.into(),
            (BodyForm::Text, _) => to_base64(&body).into(),
            _ => body.into(),
        }
    }

    /// The most bytes that a body may have before it is [`stored`](Self::stored): as many as Base64
    /// leaves room for, whatever the encoding.
    pub(crate) fn raw_limit(self) -> usize {
        match self.form {
            BodyForm::Text => self.max_body / 4 * 3,
            _ => self.max_body,
        }
    }

    fn fits_as_text(self, body: &[u8]) -> bool {
        let escapes = body
            .iter()
            .filter(|byte| matches!(byte, b'&' | b'<' | b'>'));
        xml_text(body).is_ok() && body.len() + 4 * escapes.count() <= self.max_body
    }
}

#[cfg(test)]
mod tests {
    use queue_core::wire::unwrap_base64;

    use super::*;

    fn encoder(form: BodyForm, encoding: MessageEncoding) -> Encoder {
        let mut capabilities = Capabilities::local();
        capabilities.body = form;
        capabilities.max_body = 64;
        Encoder::new(&capabilities, encoding)
    }

    #[test]
    fn text_is_written_as_it_is_where_it_survives_and_fits() {
        let encoder = encoder(BodyForm::Text, MessageEncoding::Text);
        let json = "{\"city\":\"東京\"}";
        assert_eq!(encoder.stored(json.into()), json);
        for body in ["line\r\n", "\0", &"<".repeat(13)] {
            let stored = encoder.stored(body.into());
            assert_eq!(unwrap_base64(&stored).as_deref(), Some(body.as_bytes()));
            assert!(stored.len() <= 64);
        }
        assert_eq!(encoder.stored("<".repeat(12).into()), "<".repeat(12));
    }

    #[test]
    fn base64_is_for_storage_of_text_alone() {
        for encoding in [MessageEncoding::Base64, MessageEncoding::Text] {
            let bytes = encoder(BodyForm::Bytes, encoding);
            assert_eq!(bytes.stored(b"\0".to_vec()), &b"\0"[..]);
            assert_eq!(bytes.raw_limit(), 64);
            assert_eq!(encoder(BodyForm::Text, encoding).raw_limit(), 48);
        }
        let base64 = encoder(BodyForm::Text, MessageEncoding::Base64);
        assert_eq!(base64.stored(b"{}".to_vec()), "e30=");
    }
}
