//! Every bound on what a configuration may be, once, with its reason. Bounds on the number of items of
//! one list stand beside the list in the schema (`maxItems`), as Kubernetes must know them too;
//! bounds on what is compiled stand in `policy` (`RULES_MAX`, `EXCLUDES_MAX`, `REGEX_BYTES_MAX`).

use std::time::Duration;

/// Bytes of one file. A ConfigMap cannot be larger than 1 MiB; this leaves room for a folder kept as one file.
pub const FILE_BYTES_MAX: usize = 4 << 20;

/// Files of one set, so that a wrong folder (a home directory) is refused and not read.
pub const FILES_MAX: usize = 4096;

/// Folders below a resource folder are read to this depth.
pub const FOLDER_DEPTH_MAX: usize = 8;

/// Nesting of YAML nodes. The deepest schema has 12 levels; a test's request body needs some more.
pub const NODE_DEPTH_MAX: usize = 64;

/// Nodes of one file with aliases expanded: what defuses a "billion laughs" document.
pub const NODES_MAX: usize = 200_000;

/// Findings kept of one set; the rest are counted, as nobody reads more at once.
pub const FINDINGS_MAX: usize = 500;

/// Documents of one set: more resources than any gateway steers, few enough to check within a second.
pub const DOCUMENTS_MAX: usize = 20_000;

/// Quiet time after a file event before the set is read, so that an editor's several writes are one change.
pub const DEBOUNCE: Duration = Duration::from_millis(100);

/// Longest time a burst of file events can put off reading the set.
pub const DEBOUNCE_MAX: Duration = Duration::from_millis(500);

/// Time between two looks at the files' metadata: what sends no event is in force within about a second all the same.
pub const LOOK: Duration = Duration::from_secs(1);

/// Time between two readings of the files when the filesystem sends no events (some network mounts do not).
pub const POLL: Duration = Duration::from_secs(5);

/// Shortest and longest time between two reads of an engine's metrics: below, the reading itself is load;
/// above, every policy on queues works with the past.
pub const METRICS_INTERVAL: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(60));

/// Shortest and longest wait in the queue of a route: below, the queue is not looked at in time; beyond, whoever waits has long gone.
pub const QUEUE_WAIT: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(600));

/// Largest request body that may be configured: it is held in memory whole.
pub const REQUEST_BODY_BYTES_MAX: u64 = 1 << 30;

/// Smallest and largest request head that may be configured. RFC 9112, section 3, recommends 8000 bytes
/// for the request line alone; beyond 1 MiB a head is an attack.
pub const REQUEST_HEAD_BYTES: (u64, u64) = (8 << 10, 1 << 20);

/// Endpoints of one process: what the prefix index can tell apart (`predictor::prefix::index::ENDPOINTS_MAX`).
pub const ENDPOINTS_MAX: u32 = 1_024;

/// Shortest interval of pings in a silent stream: below, they are more than the answer.
pub const STREAM_PING_MIN: Duration = Duration::from_millis(100);

// ---- the data plane ----

/// Most headers of one message head. Browsers and SDKs send under 40; proxies in front add a few.
pub const HEADERS_MAX: usize = 128;

/// Longest server-sent event that is kept while it is incomplete. A chunk with many logprobs has tens of kilobytes.
pub const SSE_EVENT_BYTES_MAX: usize = 1 << 20;

/// Longest JSON answer that is collected to be read (usage, model name). Longer ones pass unread.
pub const RESPONSE_DOCUMENT_BYTES_MAX: usize = 8 << 20;

/// Largest window of a zstd request body: what RFC 9659 lets senders of `Content-Encoding: zstd` use.
pub const ZSTD_WINDOW_BYTES_MAX: usize = 8 << 20;

/// Most parts of a multipart form; vLLM's own web framework stops at 1000 files and 1000 fields.
pub const FORM_PARTS_MAX: usize = 2_000;

/// Longest header section of a part of a form. Browsers and SDKs send two or three short lines.
pub const FORM_PART_HEAD_BYTES_MAX: usize = 8 << 10;

/// Tokens that an engine prefills in one step where it does not say (vLLM's default on most GPUs).
pub const MAX_BATCHED_TOKENS_DEFAULT: u64 = 8_192;

/// How long an exchange waits for its prompt's exact tokens before it goes by bytes, and how many bytes of body make a
/// millisecond more: a third of the speed at which a core tokenizes what was never seen (3 MB/s). An engine takes some ten times as long
/// to prefill the same prompt.
pub const TOKENIZE_WAIT: Duration = Duration::from_millis(20);
/// See [`TOKENIZE_WAIT`].
pub const TOKENIZE_BYTES_PER_MS: usize = 1 << 10;

/// Longest wait for exact tokens, however long the prompt.
pub const TOKENIZE_WAIT_MAX: Duration = Duration::from_millis(250);

/// Longest body that is tokenized: a million tokens of text. Longer ones hold images, or are beyond any context length.
pub const TOKENIZE_BODY_BYTES_MAX: usize = 4 << 20;

/// Requests that wait to be tokenized: more could not be done before their exchanges stop waiting.
pub const TOKENIZE_JOBS_MAX: usize = 256;

/// Bytes of bodies that wait to be tokenized.
pub const TOKENIZE_QUEUED_BYTES_MAX: usize = 64 << 20;

/// Helper threads that tokenize: one for two data threads, within this.
pub const TOKENIZE_THREADS_MAX: usize = 8;

/// Different tokenizers that one request is put to, where its pool has several.
pub const TOKENIZERS_PER_REQUEST_MAX: usize = 2;

/// Most endpoints that one request is tried on, the first included.
pub const ATTEMPTS_MAX: usize = 4;

/// An idle TLS connection to a provider is kept for this long: a handshake costs it and us some milliseconds, and the load
/// balancers in front of hosted APIs close idle connections after a minute or later.
pub const TLS_UPSTREAM_KEEP_ALIVE: Duration = Duration::from_secs(30);

/// Retries that are allowed at once however few requests are live; above it a fifth of the live requests.
pub const RETRIES_FLOOR: u64 = 3;

/// Tokens that an answer is taken for where the request names no limit: a typical chat answer. For what is reserved of a
/// tenant's `tokensPerMinute` and for the price that candidates are compared by.
pub const ANSWER_TOKENS_EXPECTED: u64 = 350;

/// What clocks of this machine and of issuers of tokens may differ by, in seconds.
pub const TOKEN_LEEWAY_S: u64 = 30;

/// Verified tokens that a data thread keeps: those of as many callers as use one thread at a time.
pub const TOKENS_KEPT_MAX: usize = 8_192;

/// Heads of the queue of a route that get a look each time: beyond those whose turn it is, for the case that they alone are kept back.
pub const QUEUE_LOOKS_MAX: usize = 4;
// ---- the Kubernetes source ----

/// Objects of one page of a list: what the API server's own clients ask for.
pub const LIST_PAGE_ITEMS: u32 = 500;

/// Time after which an API server that has said nothing is told of: any that is well has answered by then.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(3);

/// Longest time for a whole list.
pub const LIST_WITHIN: Duration = Duration::from_secs(60);

/// How long one watch lasts. Nothing tells of a connection whose other side is gone but the end that does not come, so
/// this bounds how long a change may go unseen then; with seven watches, asking anew each minute is no load.
pub const WATCH_LASTS: Duration = Duration::from_secs(50);

/// How much later than asked a watch may end.
pub const WATCH_MARGIN: Duration = Duration::from_secs(5);

/// First and longest pause between attempts to reach the API server.
pub const RETRY_PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Quiet time after a change of an object before the set is judged, so that `kubectl apply` of a folder is few changes.
pub const SETTLE: Duration = Duration::from_millis(30);

/// Longest time a burst of changes of objects can put off judging the set.
pub const SETTLE_MAX: Duration = Duration::from_millis(250);

/// Secrets that are followed: each is a watch of its own, so that no right to read others is needed.
pub const SECRETS_MAX: usize = 256;

/// Selectors of pods that are followed.
pub const SELECTORS_MAX: usize = 1_024;

/// Longest message of a condition or an Event. A condition may have 32768 bytes, an Event 1024.
pub const STATUS_MESSAGE_BYTES_MAX: usize = 1_000;

/// Time between two writes of the status of one object, whatever changes.
pub const STATUS_EVERY: Duration = Duration::from_secs(2);

/// Objects whose status is written in one pass, each of which takes a request.
pub const STATUS_WRITES_MAX: usize = 64;

/// How long a lease holds without being renewed, and how often it is renewed. client-go's own defaults.
pub const LEASE_LASTS: Duration = Duration::from_secs(15);

/// Time between two renewals of the lease, and between two looks at another's.
pub const LEASE_EVERY: Duration = Duration::from_secs(5);
