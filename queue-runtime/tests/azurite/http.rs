//! As much of HTTP/1.1 as the proxy needs: whole requests and whole answers.

use std::io;

use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A request or an answer.
#[derive(Debug, Clone)]
pub(crate) struct Message {
    /// The request line or status line.
    pub(crate) first: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

/// What a proxy does not pass on.
const OF_ONE_HOP: [&str; 4] = [
    "connection",
    "keep-alive",
    "transfer-encoding",
    "content-length",
];

impl Message {
    /// An answer that the server never gave.
    pub(crate) fn answer(status: &str, headers: &[(&str, &str)], body: &str) -> Self {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Self {
            first: format!("HTTP/1.1 {status}"),
            headers: headers.iter().map(owned).collect(),
            body: body.as_bytes().to_vec(),
        }
    }

    /// The next request of a connection, or `None` at its end.
    pub(crate) async fn request(
        reader: &mut (impl AsyncBufRead + Unpin),
    ) -> io::Result<Option<Self>> {
        let Some((first, headers)) = head(reader).await? else {
            return Ok(None);
        };
        let mut request = Self {
            first,
            headers,
            body: Vec::new(),
        };
        let length = request.header("content-length").unwrap_or("0");
        let length: usize = length.parse().map_err(io::Error::other)?;
        request.body.resize(length, 0);
        reader.read_exact(&mut request.body).await?;
        Ok(Some(request))
    }

    /// Has a server carry out a request, on a connection of its own.
    pub(crate) async fn carry_out(&self, port: u16) -> io::Result<Self> {
        let mut server = TcpStream::connect(("127.0.0.1", port)).await?;
        server
            .write_all(&self.bytes(&[("Connection", "close")]))
            .await?;
        let mut reader = tokio::io::BufReader::new(server);
        let (first, headers) = head(&mut reader)
            .await?
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        let mut answer = Self {
            first,
            headers,
            body: Vec::new(),
        };
        reader.read_to_end(&mut answer.body).await?;
        if answer.header("transfer-encoding") == Some("chunked") {
            answer.body = unchunked(&answer.body).ok_or(io::ErrorKind::InvalidData)?;
        }
        Ok(answer)
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers.iter();
        let found = headers.find(|header| header.0.eq_ignore_ascii_case(name));
        found.map(|header| header.1.as_str())
    }

    /// Whether this is an answer that has no body, whatever its headers say.
    pub(crate) fn is_bodiless(&self) -> bool {
        self.first.contains(" 204 ")
    }

    /// Whether this is an answer with messages of a queue in it.
    pub(crate) fn brings_messages(&self) -> bool {
        let name = b"<MessageId>";
        self.body.windows(name.len()).any(|part| part == name)
    }

    /// The message as it is sent, with these headers besides.
    pub(crate) fn bytes(&self, more: &[(&str, &str)]) -> Vec<u8> {
        let mut text = self.head(more);
        if !self.is_bodiless() {
            text.push_str(&format!("Content-Length: {}\r\n", self.body.len()));
        }
        text.push_str("\r\n");
        let mut bytes = text.into_bytes();
        bytes.extend_from_slice(&self.body);
        bytes
    }

    /// The head without its end and without a length.
    pub(crate) fn head(&self, more: &[(&str, &str)]) -> String {
        let kept = self.headers.iter().map(|(name, value)| (&**name, &**value));
        let kept = kept.filter(|(name, _)| !OF_ONE_HOP.contains(&&*name.to_ascii_lowercase()));
        let mut text = format!("{}\r\n", self.first);
        for (name, value) in kept.chain(more.iter().copied()) {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        text
    }
}

type Head = (String, Vec<(String, String)>);

async fn head(reader: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Option<Head>> {
    let mut first = String::new();
    if reader.read_line(&mut first).await? == 0 {
        return Ok(None);
    }
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        match line.trim_end().split_once(':') {
            Some((name, value)) => headers.push((name.to_owned(), value.trim().to_owned())),
            None => return Ok(Some((first.trim_end().to_owned(), headers))),
        }
    }
}

fn unchunked(mut body: &[u8]) -> Option<Vec<u8>> {
    let mut whole = Vec::new();
    loop {
        let end = body.windows(2).position(|pair| pair == b"\r\n")?;
        let length = std::str::from_utf8(&body[..end]).ok()?;
        let length = usize::from_str_radix(length.trim(), 16).ok()?;
        if length == 0 {
            return Some(whole);
        }
        let start = end + 2;
        whole.extend_from_slice(body.get(start..start + length)?);
        body = body.get(start + length + 2..)?;
    }
}
