//! Which operation a request is, and what it takes to be permitted.

use http::Method;
use queue_azure_wire::code::Code;

use crate::answer::Refusal;
use crate::target::{Query, Resource, Target};

/// An operation of the service, by the name that the reference gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    ListQueues,
    GetServiceProperties,
    SetServiceProperties,
    GetServiceStats,
    CreateQueue,
    DeleteQueue,
    GetQueueMetadata,
    SetQueueMetadata,
    GetQueueAcl,
    SetQueueAcl,
    PutMessage,
    GetMessages,
    PeekMessages,
    ClearMessages,
    UpdateMessage,
    DeleteMessage,
}

/// A value that is neither is no reason to take messages.
fn is_peek(query: &Query) -> Result<bool, Refusal> {
    match query.find("peekonly") {
        None => Ok(false),
        Some(value) if value.eq_ignore_ascii_case("true") => Ok(true),
        Some(value) if value.eq_ignore_ascii_case("false") => Ok(false),
        Some(value) => Err(Refusal::of_parameter(
            Code::InvalidQueryParameterValue,
            "peekonly",
            value,
        )),
    }
}

/// What a signature has to say to permit an operation: a permission and a type of resource for that of an account, and the
/// permission of that of a queue, if one permits it at all.
pub(crate) struct Needs {
    pub(crate) of_account: Option<(&'static [char], char)>,
    pub(crate) of_queue: Option<char>,
}

impl Operation {
    pub(crate) fn of(verb: &Method, target: &Target) -> Result<Self, Refusal> {
        let query = &target.query;
        let (restype, comp) = (query.find("restype"), query.find("comp"));
        let operation = match (&target.resource, verb.as_str(), restype, comp) {
            (Resource::Service, "GET", None, Some("list")) => Self::ListQueues,
            (Resource::Service, "GET", Some("service"), Some("properties")) => {
                Self::GetServiceProperties
            }
            (Resource::Service, "PUT", Some("service"), Some("properties")) => {
                Self::SetServiceProperties
            }
            (Resource::Service, "GET", Some("service"), Some("stats")) => Self::GetServiceStats,
            (Resource::Queue(_), "PUT", _, None) => Self::CreateQueue,
            (Resource::Queue(_), "DELETE", _, None) => Self::DeleteQueue,
            (Resource::Queue(_), "GET" | "HEAD", _, Some("metadata")) => Self::GetQueueMetadata,
            (Resource::Queue(_), "PUT", _, Some("metadata")) => Self::SetQueueMetadata,
            (Resource::Queue(_), "GET" | "HEAD", _, Some("acl")) => Self::GetQueueAcl,
            (Resource::Queue(_), "PUT", _, Some("acl")) => Self::SetQueueAcl,
            (Resource::Messages(_), "POST", ..) => Self::PutMessage,
            (Resource::Messages(_), "GET", ..) if is_peek(query)? => Self::PeekMessages,
            (Resource::Messages(_), "GET", ..) => Self::GetMessages,
            (Resource::Messages(_), "DELETE", ..) => match query.find("popreceipt") {
                None => Self::ClearMessages,
                // Meant for one message: its id is missing.
                Some(_) => return Err(Code::InvalidUri.into()),
            },
            (Resource::Message(..), "PUT", ..) => Self::UpdateMessage,
            (Resource::Message(..), "DELETE", ..) => Self::DeleteMessage,
            (Resource::Service | Resource::Queue(_), "GET" | "HEAD" | "PUT", ..) => {
                let comp = comp.unwrap_or_default();
                return Err(Refusal::of_parameter(
                    Code::InvalidQueryParameterValue,
                    "comp",
                    comp,
                ));
            }
            _ => return Err(Code::UnsupportedHttpVerb.into()),
        };
        if target.is_secondary && !operation.only_reads() {
            let detail = "the second region of an account is only read from";
            return Err(Refusal::with_detail(Code::UnsupportedHttpVerb, detail));
        }
        Ok(operation)
    }

    /// Whether the operation can be asked of the second region.
    fn only_reads(self) -> bool {
        matches!(
            self,
            Self::ListQueues
                | Self::GetServiceProperties
                | Self::GetServiceStats
                | Self::GetQueueMetadata
                | Self::GetQueueAcl
                | Self::PeekMessages
        )
    }

    pub(crate) fn needs(self) -> Needs {
        const SERVICE: char = 's';
        const QUEUE: char = 'c';
        const MESSAGE: char = 'o';
        let (of_account, of_queue): (Option<(&[char], char)>, _) = match self {
            Self::ListQueues => (Some((&['l'], SERVICE)), None),
            Self::GetServiceProperties | Self::GetServiceStats => (Some((&['r'], SERVICE)), None),
            Self::SetServiceProperties => (Some((&['w'], SERVICE)), None),
            Self::CreateQueue => (Some((&['c', 'w'], QUEUE)), None),
            Self::DeleteQueue => (Some((&['d'], QUEUE)), None),
            Self::GetQueueMetadata => (Some((&['r'], QUEUE)), Some('r')),
            Self::SetQueueMetadata => (Some((&['w'], QUEUE)), None),
            Self::GetQueueAcl | Self::SetQueueAcl => (None, None),
            Self::PutMessage => (Some((&['a'], MESSAGE)), Some('a')),
            Self::GetMessages | Self::DeleteMessage => (Some((&['p'], MESSAGE)), Some('p')),
            Self::PeekMessages => (Some((&['r'], MESSAGE)), Some('r')),
            Self::ClearMessages => (Some((&['d'], MESSAGE)), None),
            Self::UpdateMessage => (Some((&['u'], MESSAGE)), Some('u')),
        };
        Needs {
            of_account,
            of_queue,
        }
    }
}
