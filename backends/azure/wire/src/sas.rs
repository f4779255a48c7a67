//! Shared access signatures: what they say, and what of it is signed.

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;

use crate::sign::AccountKey;

/// A shared access signature, as in the query of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sas<'a> {
    /// The version of the service for which it was made (`sv`).
    pub version: &'a str,
    /// The signature (`sig`).
    pub signature: &'a str,
    /// What is allowed (`sp`), unless the stored policy says so.
    pub permissions: Option<&'a str>,
    /// When it begins (`st`), if not at once.
    pub start: Option<&'a str>,
    /// When it ends (`se`), unless the stored policy says so.
    pub end: Option<&'a str>,
    /// The stored policy of the queue that it follows (`si`).
    pub policy: Option<&'a str>,
    /// The addresses from which it may be used (`sip`).
    pub addresses: Option<&'a str>,
    /// The protocols with which it may be used (`spr`).
    pub protocols: Option<&'a str>,
    /// Of an account's: the services and the types of resources (`ss`, `srt`). `None` for that of a queue.
    pub of_account: Option<(&'a str, &'a str)>,
    /// The scope of encryption (`ses`), which is signed and means nothing here.
    scope: Option<&'a str>,
}

/// The parameters of a signature, which are none of the request's own.
pub const PARAMETERS: [&str; 12] = [
    "sv", "sig", "sp", "st", "se", "si", "sip", "spr", "ss", "srt", "ses", "sr",
];

/// The first versions whose signatures cover addresses and protocols, and the scope of encryption.
const FIRST: &str = "2015-04-05";
const FIRST_WITH_SCOPE: &str = "2020-12-06";

impl<'a> Sas<'a> {
    /// Reads the signature of a request, if it has one.
    ///
    /// # Errors
    /// What is wrong with it: a parameter that is there twice, or a signature of a version before 2015-04-05.
    pub fn read(query: &'a [(String, String)]) -> Result<Option<Self>, String> {
        let value = |name: &str| -> Result<Option<&'a str>, String> {
            let mut found = query.iter().filter(|pair| pair.0 == name);
            let first = found.next().map(|pair| pair.1.as_str());
            match found.next() {
                Some(_) => Err(format!("the parameter `{name}` is there twice")),
                None => Ok(first.filter(|value| !value.is_empty())),
            }
        };
        let Some(signature) = value("sig")? else {
            return Ok(None);
        };
        let version = value("sv")?.ok_or("the parameter `sv` is missing")?;
        if version.parse::<Date>().is_err() || version < FIRST {
            return Err(format!(
                "signatures of the version {version:?} are not supported; the first is {FIRST}"
            ));
        }
        let of_account = match (value("ss")?, value("srt")?) {
            (Some(services), Some(types)) => Some((services, types)),
            (None, None) => None,
            _ => return Err("one of the parameters `ss` and `srt` is missing".to_owned()),
        };
        Ok(Some(Self {
            version,
            signature,
            permissions: value("sp")?,
            start: value("st")?,
            end: value("se")?,
            policy: value("si")?,
            addresses: value("sip")?,
            protocols: value("spr")?,
            of_account,
            scope: value("ses")?,
        }))
    }

    /// Whether it was signed with this key, for this account or, if it is no account's, this queue of it.
    #[must_use]
    pub fn is_signed_with(&self, key: &AccountKey, account: &str, queue: Option<&str>) -> bool {
        match (&self.of_account, queue) {
            (None, None) => false,
            (None, Some(queue)) => {
                key.has_signed(&self.text_of_queue(account, queue), self.signature)
            }
            (Some(parts), _) => {
                key.has_signed(&self.text_of_account(account, *parts), self.signature)
            }
        }
    }

    fn text_of_queue(&self, account: &str, queue: &str) -> String {
        let resource = format!("/queue/{account}/{queue}");
        let of = |value: Option<&'a str>| value.unwrap_or_default();
        [
            of(self.permissions),
            of(self.start),
            of(self.end),
            &resource,
            of(self.policy),
            of(self.addresses),
            of(self.protocols),
            self.version,
        ]
        .join("\n")
    }

    fn text_of_account(&self, account: &str, (services, types): (&str, &str)) -> String {
        let of = |value: Option<&'a str>| value.unwrap_or_default();
        let mut lines = vec![
            account,
            of(self.permissions),
            services,
            types,
            of(self.start),
            of(self.end),
            of(self.addresses),
            of(self.protocols),
            self.version,
        ];
        if self.version >= FIRST_WITH_SCOPE {
            lines.push(of(self.scope));
        }
        lines.push("");
        lines.join("\n")
    }
}

/// Reads a time of a signature or of a stored policy: `2026-11-29`, `2026-11-29T10:30Z`, or with seconds and parts of one.
#[must_use]
pub fn time(text: &str) -> Option<Timestamp> {
    if let Ok(at) = text.parse() {
        return Some(at);
    }
    if let Some(minutes) = text.strip_suffix('Z') {
        let at = format!("{minutes}:00Z").parse();
        return at.ok();
    }
    let midnight = text.parse::<Date>().ok()?.to_zoned(TimeZone::UTC);
    Some(midnight.ok()?.timestamp())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(text: &str) -> Vec<(String, String)> {
        let pairs = text.split('&').filter_map(|pair| pair.split_once('='));
        pairs
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect()
    }

    #[test]
    fn what_is_signed_is_that_of_the_reference() {
        let of_queue = query("sv=2026-04-06&se=2026-12-01&sp=raup&sip=10.0.0.1&sig=x");
        let sas = Sas::read(&of_queue).expect("valid").expect("there is one");
        assert_eq!(
            sas.text_of_queue("acct", "orders"),
            "raup\n\n2026-12-01\n/queue/acct/orders\n\n10.0.0.1\n\n2026-04-06"
        );
        let of_account = query("sv=2026-04-06&se=2026-12-01&sp=rwl&ss=q&srt=sco&spr=https&sig=x");
        let sas = Sas::read(&of_account)
            .expect("valid")
            .expect("there is one");
        let parts = sas.of_account.expect("an account's");
        assert_eq!(
            sas.text_of_account("acct", parts),
            "acct\nrwl\nq\nsco\n\n2026-12-01\n\nhttps\n2026-04-06\n\n"
        );
        let older = query("sv=2019-12-12&se=2026-12-01&sp=rwl&ss=q&srt=sco&sig=x");
        let sas = Sas::read(&older).expect("valid").expect("there is one");
        let text = sas.text_of_account("acct", parts);
        assert!(text.ends_with("\n2019-12-12\n"), "{text:?}");
    }

    #[test]
    fn a_signature_that_is_no_signature_is_refused() {
        for (text, expected) in [
            (
                "sv=2026-04-06&sig=a&sig=b",
                "the parameter `sig` is there twice",
            ),
            (
                "sv=2026-04-06&sig=a&sp=r&sp=rwl",
                "the parameter `sp` is there twice",
            ),
            ("sig=a", "the parameter `sv` is missing"),
            (
                "sv=2012-02-12&sig=a",
                "signatures of the version \"2012-02-12\" are not supported",
            ),
            (
                "sv=later&sig=a",
                "signatures of the version \"later\" are not supported",
            ),
            (
                "sv=2026-04-06&sig=a&ss=q",
                "one of the parameters `ss` and `srt` is missing",
            ),
        ] {
            let error = Sas::read(&query(text)).expect_err("refused");
            assert!(error.starts_with(expected), "{error}");
        }
        assert_eq!(Sas::read(&query("sp=r&sv=2026-04-06")), Ok(None));
    }

    #[test]
    fn times_are_read_in_each_form() {
        let midnight = "2026-11-29T00:00:00Z".parse().ok();
        for text in [
            "2026-11-29",
            "2026-11-29T00:00Z",
            "2026-11-29T00:00:00Z",
            "2026-11-29T00:00:00.0000000Z",
        ] {
            assert_eq!(time(text), midnight, "{text}");
        }
        for text in ["", "Z", "tomorrow", "2026-13-01"] {
            assert_eq!(time(text), None, "{text}");
        }
    }
}
