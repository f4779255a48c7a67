//! Who may: keys, signatures, stored policies.

use std::net::IpAddr;

use http::request::Parts;
use jiff::SignedDuration;
use queue_azure_wire::code::Code;
use queue_azure_wire::sas::{self, Sas};
use queue_azure_wire::sign::Signed;
use queue_azure_wire::xml::http_date;

use crate::account::Account;
use crate::answer::Refusal;
use crate::operation::Operation;
use crate::request::Peer;
use crate::settings;
use crate::target::Target;

/// How far the clock of a client may be off.
const SKEW: SignedDuration = SignedDuration::from_mins(15);

/// Returns whether the request is permitted.
///
/// # Errors
/// Why it is not.
pub(crate) async fn check(
    account: &Account,
    operation: Operation,
    target: &Target,
    parts: &Parts,
    length: usize,
    peer: Peer,
) -> Result<(), Refusal> {
    let Some(authorization) = parts.headers.get(http::header::AUTHORIZATION) else {
        let sas = Sas::read(&target.query.0).map_err(failed)?;
        let sas = sas.ok_or(Code::NoAuthenticationInformation)?;
        return by_signature(account, operation, target, &sas, peer).await;
    };
    let authorization = authorization.to_str().unwrap_or_default();
    let (scheme, credentials) = authorization.split_once(' ').unwrap_or((authorization, ""));
    let signed = Signed {
        account: &account.name,
        verb: &parts.method,
        path: parts.uri.path(),
        query: &target.query.0,
        headers: &parts.headers,
        length,
    };
    let texts = match scheme {
        "SharedKey" => signed.texts(false),
        "SharedKeyLite" => signed.texts(true),
        "Bearer" => {
            let detail = "this server knows no tokens of Microsoft Entra ID; use an account key or a shared access signature";
            return Err(Refusal::with_detail(
                Code::InvalidAuthenticationInfo,
                detail,
            ));
        }
        _ => return Err(Code::InvalidAuthenticationInfo.into()),
    };
    let Some((name, signature)) = credentials.split_once(':') else {
        return Err(Code::InvalidAuthenticationInfo.into());
    };
    // All keys are tried, however early one fits.
    let pairs = account
        .keys
        .iter()
        .flat_map(|key| texts.iter().map(move |text| (key, text)));
    let is_signed = pairs.fold(false, |any, (key, text)| {
        any | key.has_signed(text, signature)
    });
    if name != account.name || !is_signed {
        let detail = format!(
            "The MAC signature found in the HTTP request is not the same as any computed signature. Server used following string to sign: {:?}.",
            texts[0]
        );
        return Err(failed(detail));
    }
    is_of_today(account, parts)
}

/// A request that somebody has recorded is worth nothing for long.
fn is_of_today(account: &Account, parts: &Parts) -> Result<(), Refusal> {
    let header = |name: &str| parts.headers.get(name)?.to_str().ok();
    let date = header("x-ms-date").or_else(|| header("date"));
    let at = date.and_then(http_date);
    let Some(at) = at else {
        return Err(failed(
            "the headers x-ms-date and Date are missing or no dates",
        ));
    };
    let now = account.clock.now();
    if at.duration_since(now).abs() > SKEW {
        return Err(failed(format!(
            "the date {at} of the request is more than 15 minutes from {now}, the time here"
        )));
    }
    Ok(())
}

async fn by_signature(
    account: &Account,
    operation: Operation,
    target: &Target,
    sas: &Sas<'_>,
    peer: Peer,
) -> Result<(), Refusal> {
    let queue = target.queue();
    let name = queue.map(|queue| queue.as_str());
    let signed = |any, key| any | sas.is_signed_with(key, &account.name, name);
    if !account.keys.iter().fold(false, signed) {
        return Err(failed("the signature did not match"));
    }
    let policy = match (sas.policy, queue) {
        (Some(id), Some(queue)) if sas.of_account.is_none() => {
            let policies = settings::policies(account, queue).await?;
            let policy = policies.into_iter().find(|policy| policy.id == id);
            Some(policy.ok_or_else(|| failed(format!("the queue has no stored policy {id:?}")))?)
        }
        (Some(_), _) => {
            return Err(failed(
                "the signature of an account follows no stored policy",
            ));
        }
        (None, _) => None,
    };
    // What the policy says, the signature must not say, too.
    let one = |name: &str, own: Option<&str>, stored: Option<&String>| match (own, stored) {
        (Some(_), Some(_)) => Err(failed(format!(
            "both the signature and its stored policy say `{name}`"
        ))),
        (own, stored) => Ok(own.map(str::to_owned).or_else(|| stored.cloned())),
    };
    let stored = policy.as_ref();
    let start = one(
        "st",
        sas.start,
        stored.and_then(|policy| policy.start.as_ref()),
    )?;
    let end = one(
        "se",
        sas.end,
        stored.and_then(|policy| policy.expiry.as_ref()),
    )?;
    let permissions = one(
        "sp",
        sas.permissions,
        stored.and_then(|policy| policy.permission.as_ref()),
    )?;
    let time = |name: &str, text: &str| {
        sas::time(text).ok_or_else(|| failed(format!("`{name}` is no time: {text:?}")))
    };
    let now = account.clock.now();
    if let Some(start) = start
        && time("st", &start)? > now
    {
        return Err(failed(format!(
            "the signature begins at {start}, and it is {now} here"
        )));
    }
    let end = end.ok_or_else(|| failed("the signature has no end"))?;
    if time("se", &end)? <= now {
        return Err(failed(format!(
            "the signature has ended at {end}, and it is {now} here"
        )));
    }
    if let Some(addresses) = sas.addresses
        && !is_within(addresses, peer.client.ip())
    {
        return Err(Code::AuthorizationSourceIPMismatch.into());
    }
    if sas.protocols == Some("https") && !peer.is_encrypted {
        return Err(Code::AuthorizationProtocolMismatch.into());
    }
    let permissions = permissions.ok_or_else(|| failed("the signature permits nothing"))?;
    let needs = operation.needs();
    let Some((services, types)) = sas.of_account else {
        let permitted = needs
            .of_queue
            .is_some_and(|needed| permissions.contains(needed));
        return permitted
            .then_some(())
            .ok_or(Code::AuthorizationPermissionMismatch.into());
    };
    let Some((any, kind)) = needs.of_account else {
        return Err(Code::AuthorizationFailure.into());
    };
    if !services.contains('q') {
        return Err(Code::AuthorizationServiceMismatch.into());
    }
    if !types.contains(kind) {
        return Err(Code::AuthorizationResourceTypeMismatch.into());
    }
    if !permissions.contains(any) {
        return Err(Code::AuthorizationPermissionMismatch.into());
    }
    Ok(())
}

/// Whether an address is the one of a signature, or in its range.
fn is_within(range: &str, address: IpAddr) -> bool {
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    match (first.parse::<IpAddr>(), last.parse::<IpAddr>()) {
        (Ok(first), Ok(last)) => (first..=last).contains(&address.to_canonical()),
        _ => false,
    }
}

fn failed(detail: impl Into<String>) -> Refusal {
    Refusal::with_detail(Code::AuthenticationFailed, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_within_its_range() {
        for (range, address, expected) in [
            ("10.0.0.1", "10.0.0.1", true),
            ("10.0.0.1", "10.0.0.2", false),
            ("10.0.0.1-10.0.0.9", "10.0.0.5", true),
            ("10.0.0.1-10.0.0.9", "10.0.1.5", false),
            ("10.0.0.1", "::ffff:10.0.0.1", true),
            ("nowhere", "10.0.0.1", false),
        ] {
            let address: IpAddr = address.parse().expect("an address");
            assert_eq!(is_within(range, address), expected, "{range} {address}");
        }
    }
}
