//! What happens in one seed: who asks what and how, what the engines do to each request, what changes meanwhile. Drawn from
//! the seed's number alone, so that the number tells the whole story.

use crate::draw::Draw;

/// Endpoints of a seed.
pub(crate) const ENGINES: usize = 3;

/// The story of one seed.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    pub(crate) seed: u64,
    pub(crate) connections: Vec<Connection>,
    pub(crate) events: Vec<Event>,
}

/// Something that changes while requests run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    /// It happens when the clients of the seed have begun so many requests.
    pub(crate) after: usize,
    pub(crate) what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// The documents of the seed get another form.
    Reload,
    /// An endpoint leaves the documents.
    Remove(usize),
    /// All endpoints are in the documents again.
    Restore,
    /// An engine says to probes that it is not well.
    Sicken(usize),
    /// An engine takes no more connections.
    Refuse(usize),
    /// An engine resets connections that come from now on.
    Bar(usize),
}

/// One client connection.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    pub(crate) version: Version,
    pub(crate) order: Order,
    pub(crate) pace: Pace,
    pub(crate) reader: Reader,
    pub(crate) requests: Vec<Request>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    Http10,
    Http10KeepAlive,
    Http11,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Each request when the answer before it has come.
    OneByOne,
    /// All requests at once.
    Pipelined,
}

/// In what pieces bytes are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    Whole,
    Pieces(usize),
    ByteWise,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reader {
    Eager,
    /// A small window, a little at a time.
    Slow,
}

#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) ask: Ask,
    pub(crate) framing: Framing,
    /// Bytes of the prompt beyond its id.
    pub(crate) pad: usize,
    pub(crate) then: Afterwards,
    pub(crate) leave: Leave,
    /// What becomes of it at the engines, attempt by attempt; after the last one it is answered well.
    pub(crate) acts: Vec<Act>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    Document(Name),
    Stream(Name, Usage),
    /// A path that nobody knows; the answer is no JSON.
    Opaque,
    Models,
    UnknownModel,
    BrokenJson,
    BadHead,
    TooLarge,
    BrokenChunks,
    /// The head stops coming.
    StalledHead,
    /// The body stops coming.
    StalledBody,
}

impl Ask {
    /// Whether an engine is to answer it.
    pub(crate) fn is_routed(self) -> bool {
        match self {
            Self::Document(_) | Self::Stream(..) | Self::Opaque => true,
            Self::Models
            | Self::UnknownModel
            | Self::BrokenJson
            | Self::BadHead
            | Self::TooLarge
            | Self::BrokenChunks
            | Self::StalledHead
            | Self::StalledBody => false,
        }
    }

    /// The media type of its answer.
    pub(crate) fn media(self) -> &'static str {
        match self {
            Self::Stream(..) => "text/event-stream",
            Self::Opaque => "text/plain",
            Self::Document(_)
            | Self::Models
            | Self::UnknownModel
            | Self::BrokenJson
            | Self::BadHead
            | Self::TooLarge
            | Self::BrokenChunks
            | Self::StalledHead
            | Self::StalledBody => "application/json",
        }
    }
}

/// How the model is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    Own,
    Alias,
}

/// Whether the client asks for the usage of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Usage {
    Asked,
    NotAsked,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    Length,
    /// In chunks of so many bytes.
    Chunked(usize),
}

/// What a client says of its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Afterwards {
    Keep,
    Close,
}

/// When a client leaves for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leave {
    Never,
    /// Having sent so many thousandths of its request.
    WithinRequest(usize, How),
    AfterRequest(How),
    /// Having received so many bytes.
    WithinAnswer(usize, How),
}

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    Close,
    Reset,
}

/// What an engine does to an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// Answers well.
    Answer(Answer),
    /// Answers with this status.
    Status(u16),
    /// Answers 413 at the sight of the head, and closes when the gateway has.
    Early,
    /// Ends the connection when it has the whole request.
    Vanish(How),
    /// Ends the connection at the sight of the head.
    VanishUnread(How),
    /// Says something that is not HTTP.
    Garbage,
    /// Says a part of a head, and closes.
    HalfHead,
    /// Says nothing until the gateway gives up.
    Silent,
    /// Begins to answer, and stops after so many thousandths of the body.
    Cut(Answer, usize, Stop),
    /// Within a stream, an error event; then the stream ends in good order.
    ErrorEvent(Answer),
}

/// How an answer stops before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    End(How),
    /// Nothing more comes.
    Silence,
    /// A chunk that is none.
    BadChunk,
}

/// The form of a good answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) coding: Coding,
    pub(crate) pace: Pace,
    /// Bytes beyond the few that say what it is.
    pub(crate) pad: usize,
    pub(crate) interim: Interim,
    pub(crate) then: Then,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Coding {
    Length,
    /// In chunks of so many bytes.
    Chunked(usize),
    UntilClose,
}

/// Heads before the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interim {
    None,
    Hints,
}

/// What becomes of an engine's connection after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    Keep,
    /// Told, and done.
    SayClose,
    /// Done without a word.
    CloseQuietly,
    /// The engine's side only.
    HalfClose,
    /// With the first bytes of the next request.
    ResetAtNext,
    /// The engine's side, with the first bytes of the next request, of which nothing more is read.
    HalfCloseAtNext,
    /// More is said than was asked for.
    Babble,
}

impl Script {
    /// The story of `seed`.
    pub(crate) fn of(seed: u64) -> Self {
        let draw = &mut Draw::new(seed);
        let connections: Vec<_> = (0..1 + draw.below(3)).map(|_| connection(draw)).collect();
        let requests: usize = connections.iter().map(|connection| connection.requests.len()).sum();
        let events = if draw.once_in(4) { events(draw, requests) } else { Vec::new() };
        Self { seed, connections, events }
    }

    /// Whether the number of endpoints that can be used may fall to none.
    pub(crate) fn harms_engines(&self) -> bool {
        self.events.iter().any(|event| matches!(event.what, What::Sicken(_) | What::Refuse(_) | What::Bar(_)))
    }
}

fn events(draw: &mut Draw, requests: usize) -> Vec<Event> {
    let engine = draw.below(ENGINES);
    let mut at = || 1 + draw.below(requests);
    let (first, second) = (at(), at());
    let one = |what| vec![Event { after: first, what }];
    match draw.below(6) {
        0 => one(What::Reload),
        1 => one(What::Remove(engine)),
        2 => {
            let back = Event { after: first.max(second), what: What::Restore };
            vec![Event { after: first.min(second), what: What::Remove(engine) }, back]
        }
        3 => one(What::Sicken(engine)),
        4 => one(What::Refuse(engine)),
        _ => one(What::Bar(engine)),
    }
}

fn connection(draw: &mut Draw) -> Connection {
    let version =
        draw.of(&[Version::Http11, Version::Http11, Version::Http11, Version::Http10, Version::Http10KeepAlive]);
    let order = if draw.once_in(4) { Order::Pipelined } else { Order::OneByOne };
    let pace = draw.of(&[Pace::Whole, Pace::Whole, Pace::Pieces(2), Pace::Pieces(7), Pace::ByteWise]);
    let reader = if order == Order::OneByOne && draw.once_in(5) { Reader::Slow } else { Reader::Eager };
    let last = draw.below(4);
    let mut requests = Vec::new();
    for number in 0..=last {
        requests.push(request(draw, version, order, pace));
        // Whoever has left, or has not been understood, asks no more.
        let ends = requests[number].leave != Leave::Never || ends_connection(requests[number].ask);
        if ends && order == Order::OneByOne {
            break;
        }
    }
    if order == Order::Pipelined {
        let last = requests.len() - 1;
        requests[..last].iter_mut().for_each(|request| request.leave = Leave::Never);
    }
    Connection { version, order, pace, reader, requests }
}

/// Whether the rest of the connection cannot be understood, or is not waited for.
pub(crate) fn ends_connection(ask: Ask) -> bool {
    match ask {
        Ask::BadHead | Ask::TooLarge | Ask::BrokenChunks | Ask::StalledHead | Ask::StalledBody => true,
        Ask::Document(_) | Ask::Stream(..) | Ask::Opaque | Ask::Models | Ask::UnknownModel | Ask::BrokenJson => false,
    }
}

fn ask(draw: &mut Draw, version: Version, order: Order) -> Ask {
    let name = draw.of(&[Name::Own, Name::Alias]);
    let usage = draw.of(&[Usage::Asked, Usage::NotAsked]);
    match draw.below(60) {
        0..=19 => Ask::Document(name),
        20..=45 => Ask::Stream(name, usage),
        46..=50 => Ask::Opaque,
        51 | 52 => Ask::Models,
        53 => Ask::UnknownModel,
        54 => Ask::BrokenJson,
        55 => Ask::BadHead,
        56 => Ask::TooLarge,
        57 if version == Version::Http11 => Ask::BrokenChunks,
        // A stall behind other requests would be answered when they are, which is another story each time.
        58 if order == Order::OneByOne => Ask::StalledHead,
        59 if order == Order::OneByOne => Ask::StalledBody,
        _ => Ask::Document(name),
    }
}

fn request(draw: &mut Draw, version: Version, order: Order, pace: Pace) -> Request {
    let ask = ask(draw, version, order);
    let chunked = version == Version::Http11 && ask.is_routed() && draw.once_in(4);
    let small = order == Order::Pipelined || pace == Pace::ByteWise;
    let pad = if small { draw.below(300) } else { draw.of(&[0, 100, 3_000, 20_000, 400_000]) };
    let framing = if chunked { Framing::Chunked(1 + draw.below(pad / 4 + 90)) } else { Framing::Length };
    let then = if draw.once_in(6) { Afterwards::Close } else { Afterwards::Keep };
    let mut acts = Vec::new();
    if ask.is_routed() {
        while acts.len() < 5 {
            let act = act(draw, ask, order);
            acts.push(act);
            if !act.may_be_tried_elsewhere() {
                break;
            }
        }
    }
    Request { ask, framing, pad, then, leave: leave(draw, ask), acts }
}

fn leave(draw: &mut Draw, ask: Ask) -> Leave {
    if !ask.is_routed() || !draw.once_in(5) {
        return Leave::Never;
    }
    let how = draw.of(&[How::Close, How::Reset]);
    match draw.below(3) {
        0 => Leave::WithinRequest(draw.below(1_000), how),
        1 => Leave::AfterRequest(how),
        _ => Leave::WithinAnswer(1 + draw.of(&[0, 60, 300, 2_000, 30_000]), how),
    }
}

fn act(draw: &mut Draw, ask: Ask, order: Order) -> Act {
    let answer = answer(draw, ask, order);
    let how = draw.of(&[How::Close, How::Reset]);
    match draw.below(40) {
        0 => Act::Status(429),
        1 => Act::Status(503),
        2 => Act::Status(draw.of(&[502, 500, 400])),
        3 => Act::Early,
        4 | 5 => Act::Vanish(how),
        6 | 7 => Act::VanishUnread(how),
        8 => Act::Garbage,
        9 => Act::HalfHead,
        10 if draw.once_in(2) => Act::Silent,
        11..=16 => cut(draw, answer),
        17 if matches!(ask, Ask::Stream(..)) => Act::ErrorEvent(answer),
        _ => Act::Answer(answer),
    }
}

/// Only an answer that says where it ends can be seen to be cut off.
fn cut(draw: &mut Draw, answer: Answer) -> Act {
    let stop = match draw.below(8) {
        0..=2 => Stop::End(How::Close),
        3..=5 => Stop::End(How::Reset),
        6 => Stop::BadChunk,
        _ => Stop::Silence,
    };
    let chunked = Coding::Chunked(1 + draw.below(2_000));
    let coding = match answer.coding {
        Coding::Length | Coding::UntilClose if stop == Stop::BadChunk => chunked,
        Coding::UntilClose => chunked,
        Coding::Length | Coding::Chunked(_) => answer.coding,
    };
    Act::Cut(Answer { coding, ..answer }, draw.below(1_000), stop)
}

fn answer(draw: &mut Draw, ask: Ask, order: Order) -> Answer {
    let stream = matches!(ask, Ask::Stream(..));
    let coding = match draw.below(6) {
        0 => Coding::UntilClose,
        1 | 2 if !stream => Coding::Length,
        1 => Coding::Length,
        _ => Coding::Chunked(draw.of(&[1, 7, 60, 400, 5_000])),
    };
    let pace = draw.of(&[Pace::Whole, Pace::Whole, Pace::Pieces(3), Pace::Pieces(20), Pace::ByteWise]);
    // Nobody writes much of it byte by byte.
    let little = order == Order::Pipelined || pace == Pace::ByteWise || coding == Coding::Chunked(1);
    let pad = if little { draw.below(200) } else { draw.of(&[0, 100, 5_000, 70_000, 300_000]) };
    let interim = if draw.once_in(8) { Interim::Hints } else { Interim::None };
    let then = match coding {
        Coding::UntilClose => Then::CloseQuietly,
        Coding::Length | Coding::Chunked(_) => draw.of(&[
            Then::Keep,
            Then::Keep,
            Then::Keep,
            Then::Keep,
            Then::SayClose,
            Then::CloseQuietly,
            Then::HalfClose,
            Then::ResetAtNext,
            Then::HalfCloseAtNext,
            Then::Babble,
        ]),
    };
    Answer { coding, pace, pad, interim, then }
}

impl Act {
    /// Whether the gateway may have another engine do the same, since nothing of an answer has come, or only that the engine
    /// is busy.
    pub(crate) fn may_be_tried_elsewhere(self) -> bool {
        match self {
            Self::Status(code) => matches!(code, 429 | 502 | 503),
            Self::Vanish(_) | Self::VanishUnread(_) | Self::Garbage | Self::HalfHead => true,
            // A reset takes along what the kernel has not sent yet: perhaps a part of the head, perhaps all of it.
            Self::Cut(answer, _, Stop::End(How::Reset)) => answer.pace != Pace::Whole,
            Self::Answer(_) | Self::Early | Self::Silent | Self::Cut(..) | Self::ErrorEvent(_) => false,
        }
    }

    /// Whether the engine failed, and not only in a manner of speaking.
    pub(crate) fn is_failure(self) -> bool {
        match self {
            Self::Status(code) => matches!(code, 500 | 502),
            Self::Vanish(_) | Self::VanishUnread(_) | Self::Garbage | Self::HalfHead | Self::Silent | Self::Cut(..) => {
                true
            }
            Self::Answer(_) | Self::Early | Self::ErrorEvent(_) => false,
        }
    }
}
