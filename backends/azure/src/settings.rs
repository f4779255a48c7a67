//! The settings of a connection string: `NAME=VALUE;NAME=VALUE`.
//!
//! Errors name a setting by its position or, if it is known, by its name. They never repeat what was
//! written, which may be part of a key.

use azure_core::credentials::Secret;

use super::account::Problem;

/// The settings of endpoint and credential.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Settings {
    pub(super) development: bool,
    pub(super) development_proxy: Option<String>,
    pub(super) protocol: Option<String>,
    pub(super) account: Option<String>,
    pub(super) key: Option<Secret>,
    pub(super) suffix: Option<String>,
    pub(super) queue_endpoint: Option<Secret>,
    pub(super) blob_endpoint: Option<Secret>,
    pub(super) signature: Option<Secret>,
}

/// Settings of other services of the account.
const IGNORED: [&str; 8] = [
    "BlobSecondaryEndpoint",
    "DfsEndpoint",
    "DfsSecondaryEndpoint",
    "FileEndpoint",
    "FileSecondaryEndpoint",
    "QueueSecondaryEndpoint",
    "TableEndpoint",
    "TableSecondaryEndpoint",
];

const KNOWN: &str = "AccountName, AccountKey, SharedAccessSignature, DefaultEndpointsProtocol, \
                     EndpointSuffix, QueueEndpoint, BlobEndpoint, UseDevelopmentStorage, DevelopmentStorageProxyUri \
                     and the endpoints of other services";

impl Settings {
    pub(super) fn parse(text: &str) -> Result<Self, Problem> {
        let mut settings = Self::default();
        let mut seen = Vec::new();
        let given = text.split(';').map(str::trim).enumerate();
        for (index, setting) in given.filter(|(_, setting)| !setting.is_empty()) {
            let position = index + 1;
            let Some((name, value)) = setting.split_once('=') else {
                return Err(format!(
                    "setting {position} of the connection string is not NAME=VALUE"
                )
                .into());
            };
            let (name, value) = (name.trim().to_ascii_lowercase(), value.trim());
            if seen.contains(&name) {
                return Err(
                    format!("setting {position} of the connection string is a duplicate").into(),
                );
            }
            settings.take(&name, value, position)?;
            seen.push(name);
        }
        Ok(settings)
    }

    fn take(&mut self, name: &str, value: &str, position: usize) -> Result<(), Problem> {
        let text = Some(value.to_owned());
        let secret = Some(Secret::new(value.to_owned()));
        match name {
            "usedevelopmentstorage" if value.eq_ignore_ascii_case("true") => {
                self.development = true;
            }
            "usedevelopmentstorage" => return Err("UseDevelopmentStorage must be `true`".into()),
            "developmentstorageproxyuri" => self.development_proxy = text,
            "defaultendpointsprotocol" => match value.to_ascii_lowercase().as_str() {
                protocol @ ("http" | "https") => self.protocol = Some(protocol.to_owned()),
                _ => return Err("DefaultEndpointsProtocol must be `https` or `http`".into()),
            },
            "accountname" => self.account = text,
            "accountkey" => self.key = secret,
            "endpointsuffix" => self.suffix = text,
            "queueendpoint" => self.queue_endpoint = secret,
            "blobendpoint" => self.blob_endpoint = secret,
            "sharedaccesssignature" => self.signature = secret,
            other
                if IGNORED
                    .iter()
                    .any(|known| known.eq_ignore_ascii_case(other)) => {}
            _ => {
                return Err(format!(
                    "setting {position} of the connection string is unknown; known settings are {KNOWN}"
                ).into());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(text: &str) -> String {
        let problem = Settings::parse(text).expect_err("it is rejected");
        let text = format!("{problem} {problem:?}");
        assert!(!text.contains("s3cret"), "{text}");
        text
    }

    #[test]
    fn settings_are_parsed_in_any_case_and_order() {
        let settings = Settings::parse(
            "accountkey=a2V5PT0=; AccountName=acct ;;DefaultEndpointsProtocol=HTTPS;\
             TableEndpoint=https://t/;EndpointSuffix=core.windows.net;",
        );
        let settings = settings.expect("allowed");
        assert_eq!(settings.account.as_deref(), Some("acct"));
        assert_eq!(settings.key, Some(Secret::new("a2V5PT0=")));
        assert_eq!(settings.protocol.as_deref(), Some("https"));
        assert_eq!(settings.suffix.as_deref(), Some("core.windows.net"));
    }

    #[test]
    fn errors_name_the_position_and_no_value() {
        assert!(problem("AccountName=a;s3cret").contains("setting 2"));
        assert!(problem("AccountName=a;s3cret=b").contains("setting 2"));
        assert!(problem("AccountKey=s3cret;accountkey=s3cret").contains("setting 2"));
        assert!(problem("DefaultEndpointsProtocol=s3cret").contains("must be"));
        assert!(problem("UseDevelopmentStorage=s3cret").contains("must be"));
    }
}
