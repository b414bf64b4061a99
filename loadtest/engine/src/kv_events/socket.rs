//! As much of ZMTP 3.0 as a PUB and a ROUTER socket take.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, BufReader},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
};

use super::{Line, Publisher, Sent};

/// Which socket a connection reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Publisher,
    Router,
}

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;
/// Longest frame that a peer may send here: topics and numbers.
const FRAME_BYTES_MAX: u64 = 64 << 10;
/// Between two attempts to connect.
const AGAIN: Duration = Duration::from_millis(50);

/// Takes connections; those to the stream only while the line is up.
pub(super) async fn stand(publisher: Arc<Publisher>, listener: TcpListener, kind: Kind) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(AGAIN).await;
            continue;
        };
        tokio::spawn(attend(Arc::clone(&publisher), stream, kind));
    }
}

/// Connects to a subscriber, again and again.
pub(super) async fn call(publisher: Arc<Publisher>, address: SocketAddr) {
    loop {
        if *publisher.line.borrow() == Line::Up
            && let Ok(stream) = TcpStream::connect(address).await
        {
            attend(Arc::clone(&publisher), stream, Kind::Publisher).await;
        }
        tokio::time::sleep(AGAIN).await;
    }
}

async fn attend(publisher: Arc<Publisher>, stream: TcpStream, kind: Kind) {
    let mut line = publisher.line.subscribe();
    if kind == Kind::Publisher && *line.borrow_and_update() == Line::Cut {
        return;
    }
    let (read, mut write) = stream.into_split();
    let mut read = BufReader::new(read);
    let served = async {
        shake_hands(&mut read, &mut write, kind).await?;
        match kind {
            Kind::Publisher => publish(&publisher, &mut read, &mut write).await,
            Kind::Router => answer(&publisher, &mut read, &mut write).await,
        }
    };
    tokio::select! {
        // Whoever has gone need not be told.
        _ = served => {}
        _ = line.wait_for(|line| kind == Kind::Publisher && *line == Line::Cut) => {}
    }
}

async fn shake_hands(read: &mut BufReader<OwnedReadHalf>, write: &mut OwnedWriteHalf, kind: Kind) -> io::Result<()> {
    let mut greeting = [0; 64];
    (greeting[0], greeting[9], greeting[10], greeting[11]) = (0xff, 0x7f, 3, 1);
    greeting[12..16].copy_from_slice(b"NULL");
    write.write_all(&greeting).await?;
    read.read_exact(&mut greeting).await?;
    let socket_type: &[u8] = match kind {
        Kind::Publisher => b"PUB",
        Kind::Router => b"ROUTER",
    };
    let ready = [b"\x05READY\x0bSocket-Type\0\0\0", &[socket_type.len() as u8][..], socket_type].concat();
    frame_out(write, COMMAND, &ready).await?;
    frame_in(read).await.map(|_| ())
}

/// Sends what is published under a topic that the other side asked for.
async fn publish(
    publisher: &Publisher,
    read: &mut BufReader<OwnedReadHalf>,
    write: &mut OwnedWriteHalf,
) -> io::Result<()> {
    let topic = publisher.settings.topic.as_bytes();
    loop {
        let (_, frame) = frame_in(read).await?;
        if frame.strip_prefix(&[1]).is_some_and(|wanted| topic.starts_with(wanted)) {
            break;
        }
    }
    let mut published = publisher.subscribe();
    let send = async {
        while let Some(sent) = published.recv().await {
            message_out(write, topic, &sent).await?;
        }
        Ok(())
    };
    let listen = async {
        loop {
            frame_in(read).await?;
        }
    };
    tokio::select! {
        ended = send => ended,
        ended = listen => ended,
    }
}

/// Answers questions for messages from a number on.
async fn answer(
    publisher: &Publisher,
    read: &mut BufReader<OwnedReadHalf>,
    write: &mut OwnedWriteHalf,
) -> io::Result<()> {
    let topic = publisher.settings.topic.as_bytes();
    loop {
        let question = loop {
            let (flags, frame) = frame_in(read).await?;
            if flags & MORE == 0 {
                break frame;
            }
        };
        let first = question.as_slice().try_into().map_or(u64::MAX, u64::from_be_bytes);
        let end: Sent = (u64::MAX, [].into());
        for sent in publisher.kept_from(first).iter().chain([&end]) {
            frame_out(write, MORE, b"").await?;
            message_out(write, topic, sent).await?;
        }
    }
}

async fn message_out(write: &mut OwnedWriteHalf, topic: &[u8], (number, payload): &Sent) -> io::Result<()> {
    frame_out(write, MORE, topic).await?;
    frame_out(write, MORE, &number.to_be_bytes()).await?;
    frame_out(write, 0, payload).await
}

async fn frame_out(write: &mut OwnedWriteHalf, flags: u8, body: &[u8]) -> io::Result<()> {
    let mut frame = vec![flags | LONG];
    frame.extend((body.len() as u64).to_be_bytes());
    frame.extend(body);
    write.write_all(&frame).await
}

async fn frame_in(read: &mut BufReader<OwnedReadHalf>) -> io::Result<(u8, Vec<u8>)> {
    let flags = read.read_u8().await?;
    let length = if flags & LONG == 0 { u64::from(read.read_u8().await?) } else { read.read_u64().await? };
    if length > FRAME_BYTES_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut body = vec![0; length as usize];
    read.read_exact(&mut body).await?;
    Ok((flags, body))
}
