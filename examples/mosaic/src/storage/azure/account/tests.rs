use super::*;

fn described(account: Result<Account, Problem>) -> String {
    match account {
        Ok(account) => {
            let by = match account.credential {
                Credential::Key(_) => "key",
                Credential::Signature(_) => "signature",
                Credential::Entra => "entra",
            };
            format!("{} at {} by {by}", account.name, account.endpoint)
        }
        Err(problem) => problem.to_string(),
    }
}

#[test]
fn accounts_are_read_from_connection_strings_and_urls() {
    for (text, expected) in [
        (
            "AccountName=acct;AccountKey=a2V5",
            "acct at https://acct.blob.core.windows.net by key",
        ),
        (
            "DefaultEndpointsProtocol=https;accountname=acct;AccountKey=a2V5==;EndpointSuffix=core.chinacloudapi.cn;",
            "acct at https://acct.blob.core.chinacloudapi.cn by key",
        ),
        (
            "UseDevelopmentStorage=true",
            "devstoreaccount1 at http://127.0.0.1:10000/devstoreaccount1 by key",
        ),
        (
            "UseDevelopmentStorage=true;DevelopmentStorageProxyUri=http://azurite",
            "devstoreaccount1 at http://azurite:10000/devstoreaccount1 by key",
        ),
        (
            "AccountName=a;AccountKey=k;QueueEndpoint=http://h:1/a;BlobEndpoint=http://h:2/a/;",
            "a at http://h:2/a by key",
        ),
        (
            "BlobEndpoint=https://acct.blob.core.windows.net/;SharedAccessSignature=sv=1&sig=x",
            "acct at https://acct.blob.core.windows.net by signature",
        ),
        (
            "azure://acct",
            "acct at https://acct.blob.core.windows.net by entra",
        ),
        (
            "https://acct.blob.core.windows.net/?sv=1&sig=x",
            "acct at https://acct.blob.core.windows.net by signature",
        ),
        (
            "http://127.0.0.1:10000/acct?sv=1&sig=x",
            "acct at http://127.0.0.1:10000/acct by signature",
        ),
    ] {
        assert_eq!(described(Account::parse(text)), expected, "{text}");
    }
}

#[test]
fn accounts_are_read_from_the_location_of_queues() {
    for (text, expected) in [
        (
            "azure://acct.queue.core.windows.net",
            "acct at https://acct.blob.core.windows.net by entra",
        ),
        (
            "https://acct.queue.core.windows.net/?sv=1&sig=x",
            "acct at https://acct.blob.core.windows.net by signature",
        ),
        (
            "AccountName=acct;AccountKey=a2V5",
            "acct at https://acct.blob.core.windows.net by key",
        ),
        (
            "http://127.0.0.1:10001/acct?sv=1&sig=x",
            "the URL of the queues does not identify the endpoint of the blobs; give that, too",
        ),
        (
            "AccountName=a;AccountKey=k;QueueEndpoint=http://127.0.0.1:10001/a",
            "the connection string has a QueueEndpoint but no BlobEndpoint",
        ),
    ] {
        assert_eq!(described(Account::beside(text)), expected, "{text}");
    }
}

#[test]
fn errors_do_not_repeat_the_input() {
    for (text, expected) in [
        ("AccountName=a;s3cret", "setting 2 "),
        ("AccountKey=s3cret", "neither AccountName nor BlobEndpoint"),
        ("AccountName=s3cret!;AccountKey=k", "name is not allowed"),
        (
            "AccountName=a;AccountKey=s3cret;SharedAccessSignature=sig=s3cret",
            "give one",
        ),
        ("AccountName=a", "neither an account key nor a signature"),
        (
            "azure://a.blob.core.windows.net?sig=s3cret",
            "takes no query",
        ),
        ("https://a.blob.core.windows.net/?sv=s3cret", "has no `sig`"),
        ("http://a.blob.core.windows.net/?sig=s3cret", "use https"),
        ("http://203.0.113.7/a?sig=s3cret", "use https"),
        (
            "https://u:s3cret@a.blob.core.windows.net/",
            "without a user",
        ),
        (
            "http://127.0.0.1:10000/?sig=s3cret",
            "must end with the account's name",
        ),
    ] {
        let problem = Account::parse(text).expect_err(text);
        let shown = format!("{problem} {problem:?}");
        assert!(shown.contains(expected), "{text}: {shown}");
        assert!(!shown.contains("s3cret"), "{shown}");
    }
    let account = Account::parse("AccountName=a;AccountKey=s3cret").expect("allowed");
    assert!(!format!("{account:?}").contains("s3cret"));
}
