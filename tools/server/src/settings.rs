//! What is recorded beside the queues: the stored policies of a queue, and the properties of the service.

use std::fmt::Write as _;
use std::ops::RangeInclusive;
use std::time::Duration;

use queue_azure_wire::code::Code;
use queue_azure_wire::sas;
use queue_azure_wire::xml::{Element, escaped};
use queue_core::QueueName;
use queue_core::backend::{Swap, SwapOutcome};
use queue_core::idempotency::WorkKey;

use crate::account::Account;
use crate::answer::Refusal;

/// The scopes of the records.
const POLICIES: &str = "azure-server-policies";
const PROPERTIES: &str = "azure-server-properties";

/// How often a record is written anew that somebody else changes meanwhile.
const TRIES: usize = 16;

/// The most stored policies of a queue.
const MAX_POLICIES: usize = 5;

/// For how many days logs and metrics may be kept.
const RETENTION: RangeInclusive<u32> = 1..=365;

/// The methods that a rule of CORS may name.
const METHODS: [&str; 8] = [
    "DELETE", "GET", "HEAD", "MERGE", "OPTIONS", "PATCH", "POST", "PUT",
];

/// A stored policy.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Policy {
    pub(crate) id: String,
    pub(crate) start: Option<String>,
    pub(crate) expiry: Option<String>,
    pub(crate) permission: Option<String>,
}

/// A rule for pages of other origins.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct CorsRule {
    pub(crate) origins: Vec<String>,
    pub(crate) methods: Vec<String>,
    pub(crate) allowed_headers: Vec<String>,
    pub(crate) exposed_headers: Vec<String>,
    pub(crate) max_age: u32,
}

/// Returns the stored policies of a queue.
pub(crate) async fn policies(account: &Account, queue: &QueueName) -> Result<Vec<Policy>, Refusal> {
    let recorded = recorded_policies(account, queue).await?;
    recorded.map_or(Ok(Vec::new()), |xml| read_policies(&xml))
}

/// Replaces the stored policies of a queue by those of a request.
pub(crate) async fn set_policies(
    account: &Account,
    queue: &QueueName,
    body: &[u8],
) -> Result<(), Refusal> {
    let policies = if body.is_empty() {
        Vec::new()
    } else {
        read_policies(body)?
    };
    write(
        account,
        of_queue(queue),
        Some(policies_xml(&policies).into_bytes()),
    )
    .await
}

/// Returns the record of a queue's stored policies.
pub(crate) async fn recorded_policies(
    account: &Account,
    queue: &QueueName,
) -> Result<Option<Vec<u8>>, Refusal> {
    find(account, &of_queue(queue)).await
}

/// Forgets the stored policies of a record, unless others have been set meanwhile.
pub(crate) async fn forget_these_policies(
    account: &Account,
    queue: &QueueName,
    recorded: Vec<u8>,
) -> Result<(), Refusal> {
    let forget = Swap::forget(of_queue(queue)).in_place_of(recorded);
    swap(account, &forget).await.map(drop)
}

/// Forgets the stored policies of a queue, which is deleted.
pub(crate) async fn forget_policies(account: &Account, queue: &QueueName) -> Result<(), Refusal> {
    match account.queues.results() {
        None => Ok(()),
        Some(_) => write(account, of_queue(queue), None).await,
    }
}

pub(crate) fn policies_xml(policies: &[Policy]) -> String {
    let mut xml = String::from("<SignedIdentifiers>");
    for policy in policies {
        let id = escaped(&policy.id);
        let _ = write!(xml, "<SignedIdentifier><Id>{id}</Id><AccessPolicy>");
        for (name, value) in [
            ("Start", &policy.start),
            ("Expiry", &policy.expiry),
            ("Permission", &policy.permission),
        ] {
            if let Some(value) = value {
                let _ = write!(xml, "<{name}>{}</{name}>", escaped(value));
            }
        }
        xml.push_str("</AccessPolicy></SignedIdentifier>");
    }
    xml.push_str("</SignedIdentifiers>");
    xml
}

fn read_policies(body: &[u8]) -> Result<Vec<Policy>, Refusal> {
    let root = Element::parse(body).filter(|root| root.is("SignedIdentifiers"));
    let root = root.ok_or(Code::InvalidXmlDocument)?;
    let policies = root.children.iter().map(|identifier| {
        let id = text(identifier, "Id").filter(|id| id.chars().count() <= 64);
        let access = identifier.child("AccessPolicy");
        let part = |name| access.and_then(|access| text(access, name));
        let policy = Policy {
            id: id.ok_or(Code::InvalidXmlNodeValue)?,
            start: part("Start"),
            expiry: part("Expiry"),
            permission: part("Permission"),
        };
        is_valid(&policy)
            .then_some(policy)
            .ok_or(Refusal::from(Code::InvalidXmlNodeValue))
    });
    let policies = policies.collect::<Result<Vec<_>, _>>()?;
    if policies.len() > MAX_POLICIES {
        return Err(Refusal::with_detail(
            Code::InvalidXmlDocument,
            "a queue has at most 5 stored policies",
        ));
    }
    Ok(policies)
}

fn is_valid(policy: &Policy) -> bool {
    let mut times = [&policy.start, &policy.expiry].into_iter().flatten();
    let mut permissions = policy.permission.iter().flat_map(|all| all.chars());
    times.all(|time| sas::time(time).is_some())
        && permissions.all(|permission| "raup".contains(permission))
}

fn text(parent: &Element<'_>, name: &str) -> Option<String> {
    let text = parent.child(name)?.text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

fn of_queue(queue: &QueueName) -> WorkKey {
    WorkKey::new(POLICIES, queue.as_str())
}

/// The parts of the service's properties, with what they are at first.
const PARTS: [(&str, &str); 4] = [
    (
        "Logging",
        "<Version>1.0</Version><Delete>false</Delete><Read>false</Read><Write>false</Write><RetentionPolicy><Enabled>false</Enabled></RetentionPolicy>",
    ),
    (
        "HourMetrics",
        "<Version>1.0</Version><Enabled>false</Enabled><RetentionPolicy><Enabled>false</Enabled></RetentionPolicy>",
    ),
    (
        "MinuteMetrics",
        "<Version>1.0</Version><Enabled>false</Enabled><RetentionPolicy><Enabled>false</Enabled></RetentionPolicy>",
    ),
    ("Cors", ""),
];

const ROOT: &str = "StorageServiceProperties";

/// Returns the properties of the service, as XML. Logging and metrics are kept, and nothing heeds them.
pub(crate) async fn properties(account: &Account) -> Result<String, Refusal> {
    let recorded = find(account, &of_service()).await?;
    let recorded = recorded.and_then(|xml| String::from_utf8(xml).ok());
    Ok(recorded.unwrap_or_else(|| merged(None, None)))
}

/// Replaces the parts of the properties that a request has.
pub(crate) async fn set_properties(account: &Account, body: &[u8]) -> Result<(), Refusal> {
    let new = Element::parse(body).filter(|root| root.is(ROOT));
    let new = new.ok_or(Code::InvalidXmlDocument)?;
    let known = |part: &Element<'_>| PARTS.iter().any(|(name, _)| part.is(name));
    if !new.children.iter().all(known) {
        return Err(Code::InvalidXmlDocument.into());
    }
    cors_rules(&new)?;
    check_retention(&new)?;
    let recorded = properties(account).await?;
    let old = Element::parse(recorded.as_bytes());
    let merged = merged(old.as_ref(), Some(&new));
    write(account, of_service(), Some(merged.into_bytes())).await
}

/// Returns the rules for pages of other origins.
pub(crate) async fn cors(account: &Account) -> Result<Vec<CorsRule>, Refusal> {
    match find(account, &of_service()).await? {
        Some(recorded) => match Element::parse(&recorded) {
            Some(root) => cors_rules(&root),
            None => Err(Code::InternalError.into()),
        },
        None => Ok(Vec::new()),
    }
}

fn cors_rules(root: &Element<'_>) -> Result<Vec<CorsRule>, Refusal> {
    let rules = root.child("Cors").map_or(&[][..], |cors| &cors.children);
    if rules.len() > MAX_POLICIES {
        return Err(Refusal::with_detail(
            Code::InvalidXmlDocument,
            "a service has at most 5 rules of CORS",
        ));
    }
    let rules = rules.iter().map(|rule| {
        let list = |name| {
            let values = text(rule, name).unwrap_or_default();
            let values = values
                .split(',')
                .map(str::trim)
                .filter(|value| !value.is_empty());
            values.map(str::to_owned).collect::<Vec<_>>()
        };
        let max_age = text(rule, "MaxAgeInSeconds").map_or(Ok(0), |age| age.parse());
        let rule = CorsRule {
            origins: list("AllowedOrigins"),
            methods: list("AllowedMethods"),
            allowed_headers: list("AllowedHeaders"),
            exposed_headers: list("ExposedHeaders"),
            max_age: max_age.map_err(|_| Code::InvalidXmlNodeValue)?,
        };
        let is_method = |method: &String| METHODS.contains(&method.as_str());
        let is_valid = !rule.origins.is_empty()
            && !rule.methods.is_empty()
            && rule.methods.iter().all(is_method);
        is_valid
            .then_some(rule)
            .ok_or(Refusal::from(Code::InvalidXmlNodeValue))
    });
    rules.collect()
}

/// Refuses a part that is to be kept for other than [`RETENTION`].
fn check_retention(root: &Element<'_>) -> Result<(), Refusal> {
    let mut policies = root
        .children
        .iter()
        .filter_map(|part| part.child("RetentionPolicy"));
    let is_unfit = |policy: &Element<'_>| {
        let days = text(policy, "Days").and_then(|days| days.parse().ok());
        text(policy, "Enabled").as_deref() == Some("true")
            && !days.is_some_and(|days| RETENTION.contains(&days))
    };
    if policies.any(is_unfit) {
        return Err(Refusal::with_detail(
            Code::InvalidXmlDocument,
            "a retention that is enabled is of 1 to 365 days",
        ));
    }
    Ok(())
}

/// Returns the properties of which the new parts replace the old ones.
fn merged(old: Option<&Element<'_>>, new: Option<&Element<'_>>) -> String {
    let mut xml = format!("<{ROOT}>");
    for (name, first) in PARTS {
        let part = [new, old]
            .into_iter()
            .flatten()
            .find_map(|root| root.child(name));
        match part {
            Some(part) => write_element(part, name, &mut xml),
            None => {
                let _ = write!(xml, "<{name}>{first}</{name}>");
            }
        }
    }
    let _ = write!(xml, "</{ROOT}>");
    xml
}

fn write_element(element: &Element<'_>, name: &str, xml: &mut String) {
    let _ = write!(xml, "<{name}>");
    if element.children.is_empty() {
        xml.push_str(&escaped(&element.text));
    }
    for child in &element.children {
        write_element(child, &child.name(), xml);
    }
    let _ = write!(xml, "</{name}>");
}

fn of_service() -> WorkKey {
    WorkKey::new(PROPERTIES, "queue")
}

async fn find(account: &Account, key: &WorkKey) -> Result<Option<Vec<u8>>, Refusal> {
    let Some(records) = account.queues.results() else {
        return Ok(None);
    };
    let found = records
        .find(key)
        .await
        .map_err(|error| Refusal::of(&error))?;
    Ok(found.and_then(|record| record.value).map(Into::into))
}

async fn swap(account: &Account, swap: &Swap) -> Result<SwapOutcome, Refusal> {
    let Some(records) = account.queues.results() else {
        let detail = "the storage of this server keeps nothing beside its queues";
        return Err(Refusal::with_detail(Code::NotImplemented, detail));
    };
    let swapped = records.swap(swap).await;
    swapped.map_err(|error| Refusal::of(&error))
}

async fn write(account: &Account, key: WorkKey, value: Option<Vec<u8>>) -> Result<(), Refusal> {
    for _ in 0..TRIES {
        let before = find(account, &key).await?;
        let change = match (&value, before) {
            (None, None) => return Ok(()),
            (None, Some(before)) => Swap::forget(key.clone()).in_place_of(before),
            (Some(value), None) => Swap::new(key.clone(), value.clone(), Duration::MAX),
            (Some(value), Some(before)) => {
                Swap::new(key.clone(), value.clone(), Duration::MAX).in_place_of(before)
            }
        };
        if swap(account, &change).await? == SwapOutcome::Swapped {
            return Ok(());
        }
    }
    Err(Code::ServerBusy.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_read_as_they_are_written() {
        let policies = [
            Policy {
                id: "a<b".to_owned(),
                start: Some("2026-11-29".to_owned()),
                expiry: Some("2026-12-01T10:00Z".to_owned()),
                permission: Some("raup".to_owned()),
            },
            Policy {
                id: "empty".to_owned(),
                ..Policy::default()
            },
        ];
        let xml = policies_xml(&policies);
        assert_eq!(read_policies(xml.as_bytes()).expect("valid"), policies);
    }

    #[test]
    fn policies_that_are_none_are_refused() {
        let policy = |parts: &str| {
            format!(
                "<SignedIdentifier><Id>1</Id><AccessPolicy>{parts}</AccessPolicy></SignedIdentifier>"
            )
        };
        for (inner, code) in [
            (policy("<Start>tomorrow</Start>"), Code::InvalidXmlNodeValue),
            (
                policy("<Permission>rx</Permission>"),
                Code::InvalidXmlNodeValue,
            ),
            ("<SignedIdentifier/>".to_owned(), Code::InvalidXmlNodeValue),
            (policy("").repeat(6), Code::InvalidXmlDocument),
            ("<Signed".to_owned(), Code::InvalidXmlDocument),
        ] {
            let xml = format!("<SignedIdentifiers>{inner}</SignedIdentifiers>");
            let refused = read_policies(xml.as_bytes()).expect_err("refused");
            assert_eq!(refused.code, code, "{inner}");
        }
    }

    #[test]
    fn parts_that_a_request_leaves_out_stay_as_they_are() {
        let rule = "<CorsRule><AllowedOrigins>http://a.example, http://b.example</AllowedOrigins><AllowedMethods>GET,PUT</AllowedMethods><AllowedHeaders>x-ms-*</AllowedHeaders><ExposedHeaders>*</ExposedHeaders><MaxAgeInSeconds>60</MaxAgeInSeconds></CorsRule>";
        let cors = format!("<{ROOT}><Cors>{rule}</Cors></{ROOT}>");
        let cors = Element::parse(cors.as_bytes()).expect("valid");
        let first = merged(None, Some(&cors));
        let first = Element::parse(first.as_bytes()).expect("valid");
        let logging = format!("<{ROOT}><Logging><Version>2.0</Version></Logging></{ROOT}>");
        let logging = Element::parse(logging.as_bytes()).expect("valid");
        let both = merged(Some(&first), Some(&logging));
        assert!(
            both.contains(rule) && both.contains("<Version>2.0</Version>"),
            "{both}"
        );
        let both = Element::parse(both.as_bytes()).expect("valid");
        let rules = cors_rules(&both).expect("valid");
        assert_eq!(rules[0].origins, ["http://a.example", "http://b.example"]);
        assert_eq!((rules[0].methods.len(), rules[0].max_age), (2, 60));
        assert_eq!(
            merged(Some(&first), None)
                .matches("<Version>1.0</Version>")
                .count(),
            3
        );
    }
}
