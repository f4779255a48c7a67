use std::sync::atomic::AtomicUsize;

use azure_core::time::OffsetDateTime;
use queue_clock::SystemClock;

use super::*;

#[derive(Debug)]
struct Scripted {
    gives: Option<&'static str>,
    asked: AtomicUsize,
}

#[async_trait]
impl TokenCredential for Scripted {
    async fn get_token(
        &self,
        _scopes: &[&str],
        _options: Option<TokenRequestOptions<'_>>,
    ) -> azure_core::Result<AccessToken> {
        self.asked.fetch_add(1, Relaxed);
        match self.gives {
            Some("never") => std::future::pending().await,
            Some(token) => Ok(AccessToken::new(token, OffsetDateTime::now_utc())),
            None => Err(azure_core::Error::with_message(
                ErrorKind::Credential,
                format!("no such luck,\n assertion {}", "s3cret".repeat(50)),
            )),
        }
    }
}

fn scripted(gives: Option<&'static str>) -> Arc<Scripted> {
    Arc::new(Scripted {
        gives,
        asked: AtomicUsize::new(0),
    })
}

fn chain(credentials: &[Arc<Scripted>]) -> Entra {
    let names = ["workload identity", "managed identity", "Azure CLI"];
    let source = |(name, credential): (&&'static str, &Arc<Scripted>)| Source {
        name,
        credential: Ok(Arc::clone(credential) as _),
        timeout: Duration::from_millis(20),
    };
    let sources = names.iter().zip(credentials).map(source).collect();
    Entra::of(sources, Arc::new(SystemClock::new()))
}

fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_time().build().expect("a runtime")
}

#[test]
fn the_first_credential_with_a_token_is_kept() {
    let asked = [
        scripted(None),
        scripted(Some("token")),
        scripted(Some("other")),
    ];
    let entra = chain(&asked);
    runtime().block_on(async {
        for _ in 0..3 {
            let token = entra.get_token(&[SCOPE], None).await.expect("a token");
            assert_eq!(token.token.secret(), "token");
        }
    });
    let asked = asked.map(|credential| credential.asked.load(Relaxed));
    assert_eq!(asked, [1, 3, 0]);
}

#[test]
fn each_failed_credential_is_named_without_tokens() {
    let entra = chain(&[scripted(None), scripted(Some("never")), scripted(None)]);
    let failure = runtime().block_on(entra.check()).expect_err("no token");
    let error = failure.into_error(queue_core::Operation::Open, queue_core::Timestamp::now());
    assert_eq!(error.kind(), queue_core::ErrorKind::Denied);
    assert_eq!(error.outcome(), queue_core::Outcome::NotDone);
    let told = format!("{error} {error:?}");
    for named in [
        "workload identity: no such luck, assertion …",
        "managed identity: no answer within 20ms",
        "Azure CLI: no such luck",
    ] {
        assert!(told.contains(named), "{told}");
    }
    assert!(!told.contains("s3cret"), "{told}");
}
