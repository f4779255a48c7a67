//! The codes of the service's errors.

use http::StatusCode;

/// Declares the codes, with their statuses and messages.
macro_rules! codes {
    ($($name:ident, $status:literal, $message:literal;)*) => {
        /// The code of an error, as in `x-ms-error-code`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Code {
            $(#[doc = $message] $name,)*
        }

        impl Code {
            /// The code's name on the wire.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                }
            }

            /// The status of an answer with the code.
            #[must_use]
            pub fn status(self) -> StatusCode {
                let status: u16 = match self {
                    $(Self::$name => $status,)*
                };
                StatusCode::from_u16(status).expect("the table has statuses of HTTP")
            }

            /// What the service says of the error.
            #[must_use]
            pub const fn message(self) -> &'static str {
                match self {
                    $(Self::$name => $message,)*
                }
            }
        }
    };
}

codes! {
    AuthenticationFailed, 403, "Server failed to authenticate the request. Make sure the value of the Authorization header is formed correctly including the signature.";
    AuthorizationPermissionMismatch, 403, "This request is not authorized to perform this operation using this permission.";
    AuthorizationProtocolMismatch, 403, "This request is not authorized to perform this operation using this protocol.";
    AuthorizationResourceTypeMismatch, 403, "This request is not authorized to perform this operation using this resource type.";
    AuthorizationServiceMismatch, 403, "This request is not authorized to perform this operation using this service.";
    AuthorizationSourceIPMismatch, 403, "This request is not authorized to perform this operation using this source IP.";
    AuthorizationFailure, 403, "This request is not authorized to perform this operation.";
    CorsPreflightFailure, 403, "CORS not enabled or no matching rule found for this request.";
    EmptyMetadataKey, 400, "The key for one of the metadata key-value pairs is empty.";
    InternalError, 500, "The server encountered an internal error. Please retry the request.";
    InvalidAuthenticationInfo, 401, "Authentication information is not given in the correct format. Check the value of Authorization header.";
    InvalidHeaderValue, 400, "The value for one of the HTTP headers is not in the correct format.";
    InvalidInput, 400, "One of the request inputs is not valid.";
    InvalidMetadata, 400, "The metadata specified is invalid. It contains characters that are not permitted.";
    InvalidQueryParameterValue, 400, "Value for one of the query parameters specified in the request URI is invalid.";
    InvalidResourceName, 400, "The specified resource name contains invalid characters.";
    InvalidUri, 400, "The requested URI does not represent any resource on the server.";
    InvalidXmlDocument, 400, "The specified XML is not syntactically valid.";
    InvalidXmlNodeValue, 400, "The value for one of the XML nodes is not in the correct format.";
    MessageTooLarge, 400, "The message exceeds the maximum allowed size.";
    Md5Mismatch, 400, "The MD5 value specified in the request did not match with the MD5 value calculated by the server.";
    MessageNotFound, 404, "The specified message does not exist.";
    MissingContentLengthHeader, 411, "The Content-Length header was not specified.";
    MissingRequiredQueryParameter, 400, "A query parameter that is mandatory for this request is not specified.";
    MissingRequiredXmlNode, 400, "A required XML node was not specified in the request body.";
    NoAuthenticationInformation, 401, "Server failed to authenticate the request. Please refer to the information in the www-authenticate header.";
    NotImplemented, 501, "The requested operation is not implemented on the specified resource.";
    OperationTimedOut, 500, "The operation could not be completed within the permitted time.";
    OutOfRangeQueryParameterValue, 400, "One of the query parameters specified in the request URI is outside the permissible range.";
    OutOfRangeInput, 400, "One of the request inputs is out of range.";
    PopReceiptMismatch, 400, "The specified pop receipt did not match the pop receipt for a dequeued message.";
    QueueAlreadyExists, 409, "The specified queue already exists.";
    QueueBeingDeleted, 409, "The specified queue is being deleted.";
    QueueNotFound, 404, "The specified queue does not exist.";
    RequestBodyTooLarge, 413, "The request body is too large and exceeds the maximum permissible limit.";
    RequestHeaderFieldsTooLarge, 431, "The headers of the request are too large.";
    ResourceNotFound, 404, "The specified resource does not exist.";
    ServerBusy, 503, "The server is currently unable to receive requests. Please retry your request.";
    UnsupportedHeader, 400, "One of the headers specified in the request is not supported.";
    UnsupportedHttpVerb, 405, "The resource doesn't support specified Http Verb.";
    UnsupportedQueryParameter, 400, "One of the query parameters specified in the request URI is not supported.";
}
