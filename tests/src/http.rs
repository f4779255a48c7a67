//! HTTP/1.1 for fake servers and proxies: whole messages without an HTTP library, so that a test also
//! controls what a library would not send.

use std::fmt;
use std::io::{self, Read};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread::{self, JoinHandle};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader};

/// A request or an answer. [`Display`](fmt::Display) shows it with all headers, as it was received.
#[derive(Debug, Clone)]
pub struct Message {
    /// The request line or status line.
    pub first: String,
    /// Names and values, in order.
    pub headers: Vec<(String, String)>,
    /// Empty if there is no body.
    pub body: Vec<u8>,
}

/// Headers that a proxy does not forward.
const HOP_BY_HOP: [&str; 4] = [
    "connection",
    "keep-alive",
    "transfer-encoding",
    "content-length",
];

impl Message {
    /// Creates an answer.
    #[must_use]
    pub fn answer(status: &str, headers: &[(&str, &str)], body: &str) -> Self {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Self {
            first: format!("HTTP/1.1 {status}"),
            headers: headers.iter().map(owned).collect(),
            body: body.as_bytes().to_vec(),
        }
    }

    /// Reads the next request of a connection and no byte beyond it; `None` at the connection's end.
    ///
    /// # Errors
    /// If the connection fails or ends within a request, or if that is not HTTP.
    pub fn read(stream: &mut impl Read) -> io::Result<Option<Self>> {
        let (mut head, mut byte) = (Vec::new(), [0]);
        while !head.ends_with(b"\r\n\r\n") {
            match stream.read(&mut byte)? {
                0 if head.is_empty() => return Ok(None),
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                _ => head.extend(byte),
            }
        }
        let mut message = Self::parse(&head)?;
        message.body = vec![0; message.content_length()?];
        stream.read_exact(&mut message.body)?;
        Ok(Some(message))
    }

    /// Like [`read`](Self::read), from a stream that should be buffered.
    ///
    /// # Errors
    /// The errors of [`read`](Self::read).
    pub async fn read_async(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<Self>> {
        let Some(mut message) = Self::read_head(stream).await? else {
            return Ok(None);
        };
        message.body = vec![0; message.content_length()?];
        stream.read_exact(&mut message.body).await?;
        Ok(Some(message))
    }

    /// Sends the request to a server on loopback, on a connection of its own, and returns the answer.
    ///
    /// # Errors
    /// If the connection fails or ends within the answer, or if that is not HTTP.
    pub async fn forward(&self, port: u16) -> io::Result<Self> {
        let mut server = tokio::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
        let request = self.bytes(&[("Connection", "close")]);
        server.write_all(&request).await?;
        let mut reader = BufReader::new(server);
        let answer = Self::read_head(&mut reader).await?;
        let mut answer = answer.ok_or(io::ErrorKind::UnexpectedEof)?;
        reader.read_to_end(&mut answer.body).await?;
        if answer.header("transfer-encoding") == Some("chunked") {
            answer.body = dechunk(&answer.body).ok_or(io::ErrorKind::InvalidData)?;
        }
        Ok(answer)
    }

    /// Returns the value of the first header of that name, in any case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers.iter();
        let found = headers.find(|header| header.0.eq_ignore_ascii_case(name));
        found.map(|header| header.1.as_str())
    }

    /// Whether this is an answer that has no body, whatever its headers say.
    #[must_use]
    pub fn is_bodiless(&self) -> bool {
        self.first.contains(" 204 ")
    }

    /// Returns the message in the form in which a proxy forwards it, with additional headers.
    #[must_use]
    pub fn bytes(&self, more: &[(&str, &str)]) -> Vec<u8> {
        let mut text = self.head(more);
        if !self.is_bodiless() {
            text.push_str(&format!("Content-Length: {}\r\n", self.body.len()));
        }
        text.push_str("\r\n");
        let mut bytes = text.into_bytes();
        bytes.extend_from_slice(&self.body);
        bytes
    }

    /// Returns the start of [`bytes`](Self::bytes), without length, empty line and body.
    #[must_use]
    pub fn head(&self, more: &[(&str, &str)]) -> String {
        let kept = self.headers.iter().map(|(name, value)| (&**name, &**value));
        let kept = kept.filter(|(name, _)| !HOP_BY_HOP.contains(&&*name.to_ascii_lowercase()));
        let mut text = format!("{}\r\n", self.first);
        for (name, value) in kept.chain(more.iter().copied()) {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        text
    }

    async fn read_head(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<Self>> {
        let (mut head, mut byte) = (Vec::new(), [0]);
        while !head.ends_with(b"\r\n\r\n") {
            match stream.read(&mut byte).await? {
                0 if head.is_empty() => return Ok(None),
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                _ => head.extend(byte),
            }
        }
        Self::parse(&head).map(Some)
    }

    fn parse(head: &[u8]) -> io::Result<Self> {
        let text = std::str::from_utf8(head).map_err(io::Error::other)?;
        let mut lines = text.lines();
        let first = lines.next().unwrap_or_default().to_owned();
        let headers = lines.filter_map(|line| line.split_once(':'));
        let headers = headers.map(|(name, value)| (name.to_owned(), value.trim().to_owned()));
        Ok(Self {
            first,
            headers: headers.collect(),
            body: Vec::new(),
        })
    }

    fn content_length(&self) -> io::Result<usize> {
        let length = self.header("content-length").unwrap_or("0");
        length.parse().map_err(io::Error::other)
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\r\n", self.first)?;
        for (name, value) in &self.headers {
            write!(f, "{name}: {value}\r\n")?;
        }
        write!(f, "\r\n{}", String::from_utf8_lossy(&self.body))
    }
}

/// Serves every connection to a new port on loopback, each on a thread, until the process ends.
pub fn serve(serve: impl Fn(TcpStream) + Clone + Send + 'static) -> SocketAddr {
    let (listener, address) = listen();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let serve = serve.clone();
            thread::spawn(move || serve(stream));
        }
    });
    address
}

/// Serves one connection to a new port on loopback, on a thread that returns what `serve` does.
pub fn serve_one<T: Send + 'static>(
    serve: impl FnOnce(TcpStream) -> T + Send + 'static,
) -> (SocketAddr, JoinHandle<T>) {
    let (listener, address) = listen();
    let served = thread::spawn(move || serve(listener.accept().expect("a connection").0));
    (address, served)
}

fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let address = listener.local_addr().expect("bound");
    (listener, address)
}

fn dechunk(mut body: &[u8]) -> Option<Vec<u8>> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_one_connection_are_read_one_by_one() {
        let first = "PUT /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\none";
        let connection = format!("{first}GET /b HTTP/1.1\r\n\r\n");
        let mut stream = connection.as_bytes();
        let mut next = || Message::read(&mut stream).expect("HTTP");
        assert_eq!(next().expect("a request").to_string(), first);
        assert_eq!(next().expect("a request").first, "GET /b HTTP/1.1");
        assert!(next().is_none());
        Message::read(&mut &first.as_bytes()[..20]).expect_err("cut within the head");
    }

    #[test]
    fn a_chunked_body_is_decoded() {
        let body = dechunk(b"3\r\none\r\nA\r\n, two\r\n 3.\r\n0\r\n\r\n");
        assert_eq!(body.as_deref(), Some(&b"one, two\r\n 3."[..]));
        assert_eq!(dechunk(b"9\r\ncut off"), None);
    }
}
