//! Where a value ends that is written in a line: at its closing quote, its closing bracket, or as far as it can reach without.

/// A quotation mark and how often it is escaped: in JSON inside of JSON a string begins with `\"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quote {
    mark: char,
    slashes: usize,
}

impl Quote {
    /// That of JSON.
    pub const JSON: Self = Self { mark: '"', slashes: 0 };

    /// The one that a text begins with, and its length.
    pub fn at(text: &str) -> Option<(Self, usize)> {
        let bare = text.trim_start_matches('\\');
        let mark = bare.chars().next().filter(|c| matches!(c, '"' | '\'' | '`'))?;
        let slashes = text.len() - bare.len();
        Some((Self { mark, slashes }, slashes + 1))
    }

    /// How much of a text is inside, if it closes there. An escaped one does not close, nor does one that is doubled.
    pub fn closes(self, text: &str) -> Option<usize> {
        let mut is_doubled = false;
        for (at, _) in text.match_indices(self.mark) {
            let (before, after) = text.split_at(at);
            if std::mem::take(&mut is_doubled) {
                continue;
            }
            if self.mark == '\'' && after.starts_with("''") {
                is_doubled = true;
                continue;
            }
            let slashes = before.len() - before.trim_end_matches('\\').len();
            if slashes % (2 * (self.slashes + 1)) == self.slashes {
                return Some(at - self.slashes);
            }
        }
        None
    }
}

/// Whether what follows is inside of a string that began in this line.
pub fn is_in_string(before: &str) -> bool {
    let mut rest = before;
    let mut is_in = false;
    while let Some((_, after)) = rest.split_once('"') {
        let Some(end) = Quote::JSON.closes(after) else {
            is_in = true;
            break;
        };
        rest = after.get(end + 1..).unwrap_or_default();
    }
    is_in
}

/// Whether a bracket is still open there. Brackets in strings are none.
pub fn is_open(before: &str) -> bool {
    let mut depth = 0_usize;
    let mut rest = before;
    while let Some(c) = rest.chars().next() {
        rest = rest.get(c.len_utf8()..).unwrap_or_default();
        match c {
            '{' | '[' => depth += 1,
            '}' | ']' => depth = depth.saturating_sub(1),
            '"' => rest = Quote::JSON.closes(rest).and_then(|end| rest.get(end + 1..)).unwrap_or(rest),
            _ => {}
        }
    }
    depth > 0
}

/// How long what begins with a bracket is, if it ends in this text.
pub fn balanced(text: &str) -> Option<usize> {
    let inside = Bracket::at(text)?.closes(text.get(1..)?)?;
    Some(inside + 2)
}

/// A bracket that is open, maybe over several lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bracket {
    opening: char,
    closing: char,
    /// How many of its kind are open.
    depth: usize,
    /// The string that is open in it.
    quote: Option<Quote>,
}

impl Bracket {
    /// The one that a text begins with.
    pub fn at(text: &str) -> Option<Self> {
        let of = |opening, closing| Some(Self { opening, closing, depth: 1, quote: None });
        match text.chars().next()? {
            '{' => of('{', '}'),
            '[' => of('[', ']'),
            _ => None,
        }
    }

    /// How much of what follows is inside, if it closes there; if not, the next line can be asked. Brackets in strings are
    /// none, and those of the other kind do not count.
    pub fn closes(&mut self, text: &str) -> Option<usize> {
        let mut at = 0;
        loop {
            let rest = text.get(at..)?;
            if let Some(quote) = self.quote {
                at += quote.closes(rest)? + quote.slashes + 1;
                self.quote = None;
            } else if let Some((quote, length)) = Quote::at(rest) {
                at += length;
                self.quote = Some(quote);
            } else {
                let c = rest.chars().next()?;
                self.depth += usize::from(c == self.opening);
                self.depth -= usize::from(c == self.closing);
                if self.depth == 0 {
                    return Some(at);
                }
                at += c.len_utf8();
            }
        }
    }
}

/// How long a word is; a blank that is escaped is part of it.
pub fn word(text: &str) -> usize {
    let ends = |(at, c): &(usize, char)| {
        *c == '"' || c.is_whitespace() && !text.get(..*at).unwrap_or_default().ends_with('\\')
    };
    text.char_indices().find(ends).map_or(text.len(), |(at, _)| at)
}

/// The word or the string that a text begins with.
pub fn first(text: &str) -> &str {
    let Some((quote, length)) = Quote::at(text) else { return text.get(..word(text)).unwrap_or_default() };
    let inside = text.get(length..).unwrap_or_default();
    quote.closes(inside).and_then(|end| inside.get(..end)).unwrap_or(inside)
}

/// What of a URL's authority and what follows it is user and password, and where the user ends.
pub fn user(text: &str) -> Option<(usize, usize)> {
    let of_user = before_host(text)?;
    match text.get(..of_user)?.find(':') {
        Some(colon) => Some((colon + 1, of_user)),
        // An address in the path, or a token instead of a user.
        None => (!text.get(..of_user)?.contains('/')).then_some((0, of_user)),
    }
}

/// How long a colon and the password are that follow a user, with a host after them: `root:password@tcp(db:3306)/x`.
pub fn password(after: &str) -> Option<usize> {
    let inside = after.strip_prefix(':')?;
    let is_other = inside.starts_with([':', '@']) || inside.starts_with("//");
    before_host(inside).filter(|_| !is_other).map(|length| length + 1)
}

/// Where the last `@` of what has no blanks is. That of an image's digest is none.
fn before_host(text: &str) -> Option<usize> {
    let end = text.find(|c: char| c.is_whitespace() || matches!(c, '"' | '<' | '>' | '`')).unwrap_or(text.len());
    let is_digest = |after: &str| ["sha256:", "sha384:", "sha512:"].iter().any(|digest| after.starts_with(digest));
    let mut marks = text.get(..end)?.rmatch_indices('@').map(|(at, _)| at);
    marks.find(|at| text.get(at + 1..).is_none_or(|after| !is_digest(after)))
}

/// A JSON web token, an AWS key id, a key of Ceph or a PEM file in base64. A word ends before `=`.
pub fn looks_secret(word: &str) -> bool {
    let is_jwt = word.starts_with("eyJ") && word.len() > 30 && word.matches('.').count() == 2;
    let is_aws = word.len() == 20
        && (word.starts_with("AKIA") || word.starts_with("ASIA"))
        && word.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit());
    // 28 bytes that begin with the type, 1 in two bytes: 40 characters, of which the last are `==`.
    let is_ceph = word.len() == 38
        && word.starts_with("AQ")
        && word.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '/'));
    is_jwt || is_aws || is_ceph || word.contains("LS0tLS1CRUdJTi")
}
