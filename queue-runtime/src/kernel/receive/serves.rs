use std::sync::Arc;
use std::time::Duration;

use queue_core::envelope::Envelope;
use queue_core::wire::Body;
use queue_core::{Message, MessageType, QueueName};

use crate::kernel::observe::OTHER_KIND;
use crate::kernel::settings::DEFAULT_VISIBILITY;

/// The messages that a consumer takes.
#[derive(Debug, Clone)]
pub(crate) enum Serves {
    /// Events of any kind and version, and bare bodies, as they are stored.
    Any,
    /// The messages of a type that is known when the program is compiled.
    One(&'static [MessageType; 1]),
    /// The messages of these types, of which there is at least one, by their kinds.
    Types(Arc<[MessageType]>),
}

impl Serves {
    pub(crate) fn one<M: Message>() -> Self {
        Self::One(const { &[M::TYPE] })
    }

    pub(crate) fn types(&self) -> &[MessageType] {
        match self {
            Self::Any => &[],
            Self::One(one) => *one,
            Self::Types(types) => types,
        }
    }

    /// Returns the kind of the messages, for metrics of a consumer of one type.
    pub(super) fn kind(&self) -> &'static str {
        self.types().first().map_or(OTHER_KIND, MessageType::kind)
    }

    /// Returns the type that a body is to be decoded as. Of a body that none of them takes it is the first, which says
    /// why not. `None` if any body is taken as it is.
    pub(crate) fn of_body(&self, body: &Body) -> Option<&MessageType> {
        self.types().get(self.position(body).unwrap_or(0))
    }

    /// Returns the position of the type that takes a body.
    pub(crate) fn position(&self, body: &Body) -> Option<usize> {
        let mut types = self.types().iter();
        match body {
            Body::Event(event) => types.position(|one| one.accepts(&event.envelope.kind)),
            Body::Bare(_) | Body::Malformed(_) => types.position(|one| !one.wire().is_event()),
        }
    }

    /// Returns the longest visibility timeout of the types.
    pub(super) fn visibility_timeout(&self) -> Option<Duration> {
        let timeout = |one: &MessageType| one.visibility_timeout().unwrap_or(DEFAULT_VISIBILITY);
        self.types().iter().map(timeout).max()
    }

    /// Returns the first poison queue that a type declares.
    pub(super) fn poison_queue(&self) -> Option<QueueName> {
        self.types().iter().find_map(MessageType::poison_queue)
    }

    /// Returns whether an event is for this consumer, by its kind and version.
    pub(crate) fn takes(&self, envelope: &Envelope) -> bool {
        match self {
            Self::Any => true,
            Self::One(_) | Self::Types(_) => self
                .types()
                .iter()
                .any(|one| one.accepts(&envelope.kind) && envelope.version <= one.version()),
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use queue_core::envelope::ClientId;
    use queue_core::wire::encode;
    use queue_core::{MessageId, RequestId, Wire};

    use super::*;

    const RESIZE: MessageType = MessageType::new("resize", "tasks");
    const MAIL: MessageType = MessageType::new("mail", "tasks")
        .with_aliases(&["letter"])
        .with_version(2)
        .with_visibility_timeout(Duration::from_secs(60));
    const HOOK: MessageType = MessageType::new("hook", "tasks").with_wire(Wire::Bare);

    fn event(kind: &str, version: u32) -> Envelope {
        let client = ClientId::new("test").expect("valid");
        let mut envelope = Envelope::new(MessageId::random(), client, RequestId::random(), kind);
        envelope.version = version;
        envelope
    }

    fn body(kind: &str) -> Body {
        Body::read(&encode(&event(kind, 1), b"{}").into(), usize::MAX)
    }

    #[test]
    fn a_consumer_of_several_types_knows_each_by_its_kind() {
        let serves = Serves::Types(Arc::new([RESIZE, MAIL, HOOK]));
        let kind_of = |body: &Body| serves.of_body(body).map(MessageType::kind);
        for (kind, expected) in [("resize", "resize"), ("mail", "mail"), ("letter", "mail")] {
            assert_eq!(kind_of(&body(kind)), Some(expected));
        }
        assert_eq!(kind_of(&Body::Bare(Bytes::from("{}"))), Some("hook"));
        assert_eq!(kind_of(&body("unknown")), Some("resize"));
        assert_eq!(
            Serves::Any.of_body(&body("mail")).map(MessageType::kind),
            None
        );
        assert_eq!(serves.visibility_timeout(), Some(Duration::from_secs(60)));
    }

    #[test]
    fn each_type_takes_its_own_versions() {
        let serves = Serves::Types(Arc::new([RESIZE, MAIL]));
        for (kind, version, takes) in [
            ("resize", 1, true),
            ("resize", 2, false),
            ("mail", 2, true),
            ("letter", 2, true),
            ("mail", 3, false),
            ("unknown", 1, false),
        ] {
            assert_eq!(
                serves.takes(&event(kind, version)),
                takes,
                "{kind} {version}"
            );
            assert!(Serves::Any.takes(&event(kind, version)));
        }
    }
}
