//! HTTP/1.1 framing without I/O (RFC 9112): heads, chunked coding, header rewriting. No copies of what is received.

pub(crate) mod chunked;
pub mod door;
pub(crate) mod head;
pub(crate) mod name;
pub(crate) mod rewrite;
pub(crate) mod target;

pub(crate) use chunked::ChunkedDecoder;
pub(crate) use head::{BodyFraming, HeadError, Method, RequestHead, ResponseHead, Version};
pub(crate) use name::Name;
