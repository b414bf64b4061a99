//! The access log on its way out: a thread of its own writes lines to stdout or to a file.
//!
//! A disk that is full or a reader that has stopped holds up this thread only. What finds no room is counted, and told
//! once, not once a line. A file that was renamed or removed (logrotate) is opened anew before the next line, and on SIGHUP.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};

use super::journal;

/// Batches of lines that wait to be written; data threads send at most a few hundred a second.
const BATCHES_MAX: usize = 1_024;

/// How often a file is looked at to see whether it still has its name.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Where lines go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    /// Standard output.
    Stdout,
    /// A file, appended to.
    File(PathBuf),
    /// Nowhere.
    Off,
}

impl Target {
    /// As written in the server's file: `-` is stdout, nothing is off.
    pub(crate) fn parse(path: &str) -> Self {
        match path {
            "" => Self::Off,
            "-" => Self::Stdout,
            path => Self::File(path.into()),
        }
    }
}

enum Order {
    Lines(Vec<u8>),
    Reopen,
    Flush(Sender<()>),
}

/// The sending side.
#[derive(Debug)]
pub(crate) struct AccessLog {
    orders: Option<Sender<Order>>,
    dropped: Arc<AtomicU64>,
}

impl AccessLog {
    /// Opens the target and starts its thread.
    ///
    /// # Errors
    /// When the file cannot be opened.
    pub(crate) fn open(target: &Target) -> io::Result<Self> {
        let dropped = Arc::new(AtomicU64::new(0));
        let sink = match target {
            Target::Off => return Ok(Self { orders: None, dropped }),
            Target::Stdout => Sink::Stdout,
            Target::File(path) => Sink::open(path)?,
        };
        let (sender, orders) = bounded(BATCHES_MAX);
        let writer = Writer { sink, looked: Instant::now(), trouble: Trouble::No, dropped: dropped.clone() };
        std::thread::Builder::new().name(String::from("access-log")).spawn(move || writer.run(&orders))?;
        Ok(Self { orders: Some(sender), dropped })
    }

    /// Hands over whole lines; never waits.
    pub(crate) fn write(&self, lines: Vec<u8>) {
        let Some(orders) = &self.orders else { return };
        if let Err(TrySendError::Full(Order::Lines(lines)) | TrySendError::Disconnected(Order::Lines(lines))) =
            orders.try_send(Order::Lines(lines))
        {
            self.dropped.fetch_add(count_lines(&lines), Ordering::Relaxed);
        }
    }

    /// Opens the file anew.
    pub(crate) fn reopen(&self) {
        if let Some(orders) = &self.orders {
            // When there is no room, the writer looks at the file's name within a second anyway.
            let _ = orders.try_send(Order::Reopen);
        }
    }

    /// Lines that could not be written.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Waits until everything handed over so far is written, at most `within`.
    pub(crate) fn flush(&self, within: Duration) {
        let Some(orders) = &self.orders else { return };
        let (done, wait) = bounded(1);
        if orders.send_timeout(Order::Flush(done), within).is_ok() {
            let _ = wait.recv_timeout(within);
        }
    }
}

fn count_lines(lines: &[u8]) -> u64 {
    memchr::memchr_iter(b'\n', lines).count() as u64
}

enum Sink {
    Stdout,
    File { path: PathBuf, file: File },
}

impl Sink {
    fn open(path: &Path) -> io::Result<Self> {
        let named = |error: io::Error| io::Error::new(error.kind(), format!("access log {}: {error}", path.display()));
        // Opening a pipe waits for somebody who reads it.
        if std::fs::metadata(path).is_ok_and(|found| found.file_type().is_fifo()) {
            let unread = |_| io::Error::new(io::ErrorKind::NotConnected, "it is a pipe that nobody reads");
            OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(unread).map_err(named)?;
        }
        let file = OpenOptions::new().append(true).create(true).open(path).map_err(named)?;
        Ok(Self::File { path: path.into(), file })
    }

    fn write_all(&mut self, lines: &[u8]) -> io::Result<()> {
        match self {
            Self::Stdout => {
                let mut out = io::stdout().lock();
                out.write_all(lines)?;
                out.flush()
            }
            Self::File { file, .. } => file.write_all(lines),
        }
    }

    /// Whether the file is no longer the one that its name stands for.
    fn is_moved(&self) -> bool {
        match self {
            Self::Stdout => false,
            Self::File { path, file } => match (std::fs::metadata(path), file.metadata()) {
                (Ok(named), Ok(open)) => (named.dev(), named.ino()) != (open.dev(), open.ino()),
                (Err(_), _) => true,
                (Ok(_), Err(_)) => false,
            },
        }
    }

    fn reopen(&mut self) -> io::Result<()> {
        match self {
            Self::Stdout => Ok(()),
            Self::File { path, .. } => {
                *self = Self::open(&path.clone())?;
                Ok(())
            }
        }
    }
}

/// Whether the last write failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trouble {
    Yes,
    No,
}

struct Writer {
    sink: Sink,
    looked: Instant,
    trouble: Trouble,
    dropped: Arc<AtomicU64>,
}

impl Writer {
    /// Ends when the sending side is gone.
    fn run(mut self, orders: &Receiver<Order>) {
        for order in orders {
            match order {
                Order::Lines(lines) => self.write(&lines),
                Order::Reopen => self.reopen(),
                Order::Flush(done) => {
                    let _ = done.send(());
                }
            }
        }
    }

    fn write(&mut self, lines: &[u8]) {
        if self.looked.elapsed() >= LOOK_EVERY {
            self.looked = Instant::now();
            if self.sink.is_moved() {
                self.reopen();
            }
        }
        let result = self.sink.write_all(lines);
        self.judge(&result, count_lines(lines));
    }

    fn reopen(&mut self) {
        let result = self.sink.reopen();
        self.judge(&result, 0);
    }

    fn judge(&mut self, result: &io::Result<()>, lines: u64) {
        match (result, self.trouble) {
            (Ok(()), Trouble::No) => {}
            (Ok(()), Trouble::Yes) => {
                journal::info("access log is written again", &[("lines_lost", &self.dropped.load(Ordering::Relaxed))]);
                self.trouble = Trouble::No;
            }
            (Err(error), trouble) => {
                self.dropped.fetch_add(lines, Ordering::Relaxed);
                if trouble == Trouble::No {
                    journal::error("access log cannot be written; lines are counted and lost", &[("error", error)]);
                    self.trouble = Trouble::Yes;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(180);

    #[test]
    fn lines_are_appended_and_a_moved_file_is_left_alone_after_a_reopen() {
        let dir = tempfile::tempdir().unwrap();
        let (path, old) = (dir.path().join("a.log"), dir.path().join("a.log.1"));
        std::fs::write(&path, "before\n").unwrap();
        let log = AccessLog::open(&Target::parse(path.to_str().unwrap())).unwrap();
        log.write(b"one\n".to_vec());
        log.flush(LONG);
        std::fs::rename(&path, &old).unwrap();
        log.reopen();
        log.write(b"two\n".to_vec());
        log.flush(LONG);
        assert_eq!(std::fs::read_to_string(&old).unwrap(), "before\none\n");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "two\n");
        assert_eq!(log.dropped(), 0);
    }

    #[test]
    fn a_file_that_was_removed_or_replaced_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.log");
        let mut sink = Sink::open(&path).unwrap();
        assert!(!sink.is_moved());
        std::fs::rename(&path, dir.path().join("b.log")).unwrap();
        assert!(sink.is_moved());
        sink.reopen().unwrap();
        assert!(!sink.is_moved());
    }

    #[test]
    fn a_full_disk_costs_lines_and_nothing_else() {
        let log = AccessLog::open(&Target::File("/dev/full".into())).unwrap();
        log.write(b"one\ntwo\n".to_vec());
        log.write(b"three\n".to_vec());
        log.flush(LONG);
        assert_eq!(log.dropped(), 3);
    }

    #[test]
    fn off_takes_lines_and_a_path_that_cannot_be_opened_is_an_error() {
        let log = AccessLog::open(&Target::parse("")).unwrap();
        log.write(b"x\n".to_vec());
        log.flush(LONG);
        assert_eq!(log.dropped(), 0);
        let told = AccessLog::open(&Target::File("/nowhere/at/all".into())).err().map(|error| error.to_string());
        assert!(told.is_some_and(|told| told.contains("/nowhere/at/all")));
    }
}
