//! Cue words: what a request asks for, and the language it is in. Words and pairs of words are looked up by their hash.

/// A group of cue words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Cue {
    /// Questions for a fact.
    Wh,
    /// Work with many steps.
    Demand,
    /// Program text.
    Code,
    /// Names of programming languages and tools.
    Tongue,
    /// Mathematics.
    Math,
    /// How many, how much.
    Quantity,
    /// Conditions on the answer.
    Constraint,
    /// Forms of the answer.
    Format,
    /// Long creative work.
    Creative,
    /// One-step work on a given text.
    Rewrite,
    /// A given text.
    Passage,
    /// Greetings and small talk.
    Chat,
    /// Commands to an assistant.
    Command,
    /// Order of steps.
    Sequence,
    /// A part to play.
    Role,
    /// Reasons.
    Reason,
    /// The asker.
    Self_,
}

/// How many groups there are.
pub(crate) const CUES: usize = Cue::Self_ as usize + 1;

/// Words and pairs of words of each group, lower case.
pub(crate) const CUE_WORDS: &[(Cue, &[&str])] = &[
    (Cue::Wh, &["who", "when", "where", "what", "which", "whose", "whom", "what's", "who's", "how old", "how tall", "how long", "how far", "capital of", "name of", "meaning of"]),
    (Cue::Demand, &[
        "design", "implement", "develop", "build", "create", "optimize", "optimise", "refactor", "architect", "architecture", "analyze", "analyse", "analysis",
        "compare", "contrast", "evaluate", "assess", "critique", "debug", "derive", "strategy", "strategies", "plan", "propose", "proposal", "investigate",
        "comprehensive", "detailed", "detail", "thorough", "in depth", "deep dive", "trade offs", "tradeoffs", "trade off", "pros and", "framework", "system",
        "research", "report", "guide", "tutorial", "roadmap", "migrate", "simulate", "formulate", "construct", "justify", "discuss", "elaborate", "outline",
        "scalable", "production", "robust", "efficient", "complexity", "edge cases", "failure modes", "in detail",
    ]),
    (Cue::Code, &[
        "code", "function", "class", "method", "program", "script", "algorithm", "api", "bug", "error", "exception", "compile", "compiler", "runtime", "array",
        "string", "loop", "variable", "database", "query", "regex", "json", "html", "def", "return", "import", "const", "void", "int", "null", "stack", "thread",
        "endpoint", "server", "client", "library", "module", "package", "frontend", "backend", "assert", "test", "tests", "unit tests", "struct", "async", "await",
        "printf", "println", "console", "select", "async", "self", "elif", "public", "static",
    ]),
    (Cue::Tongue, &[
        "python", "javascript", "typescript", "java", "rust", "golang", "sql", "bash", "c++", "c", "php", "ruby", "swift", "kotlin", "scala", "haskell", "perl",
        "react", "django", "flask", "node", "pytorch", "tensorflow", "numpy", "pandas", "docker", "kubernetes", "postgres", "postgresql", "mysql", "redis",
        "css", "matlab", "latex", "excel", "vba", "powershell", "terraform", "ansible", "unity", "godot", "arduino", "cuda", "opengl", "assembly", "lua",
    ]),
    (Cue::Math, &[
        "solve", "equation", "equations", "integral", "derivative", "probability", "theorem", "proof", "prove", "matrix", "vector", "polynomial", "integer",
        "integers", "prime", "modulo", "sum", "product", "ratio", "percent", "percentage", "average", "triangle", "circle", "radius", "angle", "area", "volume",
        "perimeter", "calculate", "compute", "evaluate", "function f", "fraction", "square", "root", "sequence", "series", "random variable", "expected value",
        "variance", "distribution", "km", "mph", "speed", "interest", "profit", "times as", "twice", "half", "remainder", "divisible", "per hour", "each day",
        "per day", "per week", "real numbers", "such that", "denote", "lemma", "converges", "limit", "logarithm", "sin", "cos", "mathbb", "frac",
    ]),
    (Cue::Quantity, &["how many", "how much", "in total", "total", "altogether", "left", "remaining", "more than", "less than", "fewer", "cost", "costs", "price", "dollars", "spend", "earn", "pay"]),
    (Cue::Constraint, &[
        "must", "should", "at least", "at most", "exactly", "no more", "without", "do not", "don't", "only", "ensure", "make sure", "include", "including", "avoid",
        "each", "every", "between", "limit", "maximum", "minimum", "within", "requirements", "constraints", "following", "use the", "using", "based on", "according",
        "never", "always", "also", "additionally", "furthermore", "moreover", "while", "unless", "satisfy", "keep", "both",
    ]),
    (Cue::Format, &["list", "table", "bullet", "bullets", "bullet points", "markdown", "csv", "words", "paragraph", "paragraphs", "sentences", "format", "column", "columns", "section", "sections", "headings", "template", "output", "yaml", "numbered", "title"]),
    (Cue::Creative, &["story", "poem", "essay", "song", "novel", "screenplay", "lyrics", "scene", "character", "characters", "dialogue", "script", "chapter", "blog", "article", "speech", "letter", "write a", "fiction", "haiku", "plot", "narrative", "worldbuilding", "monologue"]),
    (Cue::Rewrite, &["translate", "translation", "summarize", "summarise", "rewrite", "rephrase", "paraphrase", "correct", "grammar", "spell", "spelling", "shorten", "extract", "classify", "sentiment", "identify", "label", "define", "synonym", "antonym", "convert", "capitalize", "proofread", "reword", "positive or", "the sentence", "a sentence", "key concepts", "tag", "select"]),
    (Cue::Passage, &["passage", "context", "paragraph", "document", "article", "text", "question", "answer", "following text", "the plot", "the text", "below", "excerpt", "concepts", "movie", "review", "no answer", "can't answer", "extract the"]),
    (Cue::Chat, &["hi", "hello", "hey", "thanks", "thank", "thank you", "please", "joke", "ok", "okay", "yes", "no", "bye", "goodbye", "good morning", "how are", "fine", "great", "cool", "sorry", "continue", "go on"]),
    (Cue::Command, &["set", "remind", "turn on", "turn off", "play", "book", "call", "order", "cancel", "schedule", "alarm", "timer", "reminder", "calendar", "weather", "flight", "balance", "account", "bill", "card", "flip", "roll", "directions", "restaurant", "reservation", "transfer", "tell me", "show me", "find", "give me", "check", "change", "can you", "i need", "i want", "do i", "is my", "my account", "what is", "let me"]),
    (Cue::Sequence, &["step by", "step", "steps", "first", "second", "then", "finally", "next", "after", "before", "phase", "part", "stage", "iterate", "process"]),
    (Cue::Role, &["you are", "imagine", "act as", "pretend", "suppose", "assume", "consider", "scenario", "as a", "role", "expert", "persona", "you will", "your task"]),
    (Cue::Reason, &["why", "explain", "how does", "how do", "how can", "how would", "how to", "reason", "reasons", "because", "therefore", "implications", "impact", "effects", "cause", "causes", "relationship", "difference between", "show the", "reasoning", "show that"]),
    (Cue::Self_, &["i", "me", "my", "i'm", "i've", "we", "our", "us", "mine", "i am", "i have"]),
];

/// Stop words of the languages written in Latin letters, by the code used in tags. Words two languages share count for both.
pub(crate) const STOP_WORDS: &[(&str, &[&str])] = &[
    ("en", &[
        "the", "a", "an", "and", "of", "to", "in", "is", "it", "you", "that", "for", "on", "are", "with", "as", "i", "this", "be", "at", "have", "from", "or",
        "what", "when", "where", "who", "which", "how", "why", "my", "me", "your", "we", "do", "does", "did", "can", "could", "would", "will", "was", "were",
        "not", "but", "if", "by", "please", "his", "her", "their", "there", "has", "had", "about", "into", "than", "then", "them", "these", "those", "should",
        "give", "tell", "write", "make", "need", "want", "it's", "i'm", "don't", "what's", "many", "much", "some", "any", "all", "following", "thanks", "hello", "set", "find",
        "convert", "change", "new", "start", "play", "turn", "show", "call", "add", "cancel", "book", "time", "day", "people", "good", "know", "more", "say", "get",
        "go", "like", "just", "because", "after", "before", "first", "last", "city", "country", "name", "old", "long", "year", "hi", "hours", "minutes", "miles", "way",
        "let", "now", "up", "out", "off", "own", "information", "story", "translate", "explain", "describe", "summarize", "question", "sentence", "words",
    ]),
    ("de", &["der", "die", "das", "und", "ist", "nicht", "ein", "eine", "einen", "ich", "du", "wir", "sie", "mit", "für", "auf", "von", "zu", "dem", "den", "im", "wie", "was", "wer", "warum", "bitte", "kann", "mein", "dein", "auch", "sich", "aus", "bei", "oder", "wenn", "diese", "dieser", "schreibe", "werden", "wird", "über", "gibt"]),
    ("fr", &["le", "la", "les", "des", "et", "est", "un", "une", "du", "pas", "que", "qui", "dans", "pour", "sur", "avec", "ce", "cette", "je", "tu", "vous", "nous", "il", "elle", "mon", "ma", "votre", "quel", "quelle", "comment", "pourquoi", "sont", "aux", "au", "moi", "merci", "où", "ces", "être", "écris", "c'est", "j'ai", "donne"]),
    ("es", &["el", "la", "los", "las", "de", "y", "que", "en", "un", "una", "es", "por", "para", "con", "no", "se", "del", "al", "como", "cómo", "qué", "quién", "cuál", "dónde", "mi", "tu", "su", "más", "este", "esta", "pero", "o", "lo", "yo", "me", "está", "son", "cuando", "porque", "escribe", "puedes", "hay", "ser"]),
    ("it", &["il", "lo", "la", "gli", "le", "di", "e", "che", "è", "un", "una", "per", "con", "non", "del", "della", "dei", "come", "cosa", "chi", "dove", "perché", "quale", "mi", "sono", "questo", "questa", "nel", "alla", "al", "più", "anche", "si", "da", "ho", "scrivi", "quanto", "essere", "puoi"]),
    ("pt", &["o", "a", "os", "as", "de", "e", "que", "do", "da", "em", "um", "uma", "para", "com", "não", "no", "na", "por", "mais", "como", "mas", "foi", "ao", "se", "eu", "meu", "minha", "você", "qual", "quem", "onde", "porque", "são", "está", "isso", "este", "esta", "dos", "das", "pelo", "escreva", "é"]),
    ("nl", &["de", "het", "een", "en", "van", "is", "niet", "dat", "die", "ik", "je", "jij", "wij", "met", "voor", "op", "zijn", "wat", "wie", "waar", "waarom", "hoe", "mijn", "naar", "ook", "maar", "om", "aan", "er", "bij", "kan", "wordt", "deze", "dit", "schrijf", "heb", "heeft", "als", "uit", "nog"]),
    ("pl", &["i", "w", "na", "nie", "się", "że", "z", "do", "to", "jest", "jak", "co", "kto", "gdzie", "dlaczego", "o", "dla", "mnie", "mój", "czy", "są", "od", "po", "przez", "tym", "który", "która", "napisz", "ale", "oraz", "tego", "może"]),
    ("sv", &["och", "att", "det", "som", "en", "är", "på", "jag", "inte", "för", "med", "av", "till", "den", "har", "de", "om", "ett", "vad", "vem", "var", "varför", "hur", "min", "kan", "du", "vi", "från", "men", "skriv", "eller", "ska"]),
    ("cs", &["a", "je", "v", "na", "se", "že", "to", "s", "z", "do", "jak", "co", "kdo", "kde", "proč", "pro", "ne", "jsem", "jsou", "ale", "který", "která", "mi", "můj", "nebo", "při", "napiš", "tak", "jako"]),
    ("tr", &["ve", "bir", "bu", "ne", "için", "ile", "mi", "de", "da", "çok", "nasıl", "neden", "kim", "nerede", "ben", "benim", "sen", "olarak", "daha", "gibi", "var", "yok", "olan", "bana", "değil", "mı", "hakkında", "yaz"]),
    ("id", &["yang", "dan", "di", "ini", "itu", "dengan", "untuk", "dari", "pada", "adalah", "tidak", "saya", "apa", "siapa", "bagaimana", "mengapa", "dalam", "akan", "ke", "oleh", "bisa", "atau", "buatkan", "tentang", "juga", "anda"]),
    ("vi", &["là", "và", "của", "một", "có", "không", "cho", "tôi", "những", "các", "được", "trong", "này", "với", "về", "để", "hãy", "thế", "nào", "bạn", "người", "câu", "viết", "theo", "như"]),
];
