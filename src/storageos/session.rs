//! A login that lasts: refreshed before it ends, renewed once when a call is refused, at the next endpoint when one does not
//! answer, or has nobody behind it.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use axum::body::Bytes;
use http::Method;
use http::header::{AUTHORIZATION, HeaderMap};
use tokio::sync::Semaphore;

use crate::api::shared_volume_provider::{SharedVolumeProviderSpec, Transport};
use crate::runtime::clock::monotonic;
use crate::runtime::lock::lock;

use super::error::CallError;
use super::metrics::Metrics;
use super::transport::{self, Answer, Call, Http};
use super::wire::Login;

/// A token is refreshed this often, or after half of its life if that is shorter.
const REFRESH: Duration = Duration::from_secs(60);
/// Where the answer to a login says how long its token lives.
const EXPIRES: [&str; 2] = ["authorization-expires-seconds", "authorization-expires-in"];

/// How a control plane is reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Base URLs, tried in order.
    pub endpoints: Vec<String>,
    /// With TLS or without.
    pub transport: Transport,
    /// Base64 of PEM certificates; those of the system without.
    pub ca_bundle: Option<String>,
    /// Deadline of one call.
    pub request_timeout: Duration,
    /// Calls in flight.
    pub concurrency: u32,
}

impl From<&SharedVolumeProviderSpec> for Settings {
    fn from(spec: &SharedVolumeProviderSpec) -> Self {
        Self {
            endpoints: spec.endpoints.clone(),
            transport: spec.transport,
            ca_bundle: spec.ca_bundle.clone(),
            request_timeout: spec.request_timeout.get(),
            concurrency: spec.max_concurrent_requests,
        }
    }
}

/// Who logs in.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// User name.
    pub username: String,
    /// Password.
    pub password: String,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("username", &self.username).finish_non_exhaustive()
    }
}

/// A session with a control plane.
pub(super) struct Session {
    http: Http,
    /// Base URLs.
    endpoints: Vec<String>,
    credentials: Credentials,
    /// One login at a time, and everybody waits for it.
    state: tokio::sync::Mutex<State>,
    /// The endpoint that answered last, for people.
    in_use: Mutex<Option<String>>,
    /// When the token has to be refreshed. Apart from `state`, which is locked for as long as a login takes.
    due: Mutex<Option<Instant>>,
    permits: Semaphore,
    metrics: Metrics,
}

#[derive(Default)]
struct State {
    /// Which endpoint is asked.
    current: usize,
    token: Option<Token>,
    /// Logins so far; a token is known by the number of its own.
    logins: u64,
}

#[derive(Clone)]
struct Token {
    login: u64,
    base: String,
    bearer: String,
    expires: Option<Instant>,
    refreshed: Instant,
}

impl Token {
    /// When it has to be refreshed.
    fn due(&self) -> Instant {
        let life = self.expires.map(|expires| expires.saturating_duration_since(self.refreshed));
        self.refreshed + life.map_or(REFRESH, |life| REFRESH.min(life / 2))
    }
}

impl Session {
    /// Nobody is logged in yet.
    pub fn new(settings: &Settings, credentials: Credentials, metrics: Metrics) -> Result<Self, CallError> {
        let endpoints = settings.endpoints.iter().map(|url| transport::base(url)).collect::<Result<_, _>>()?;
        Ok(Self {
            http: Http::new(settings)?,
            endpoints,
            credentials,
            state: tokio::sync::Mutex::default(),
            in_use: Mutex::new(None),
            due: Mutex::new(None),
            permits: Semaphore::new(settings.concurrency.max(1) as usize),
            metrics,
        })
    }

    /// The endpoint in use: the one of the last login.
    pub fn endpoint(&self) -> Option<String> {
        lock(&self.in_use).clone()
    }

    /// Makes one call. A refused token is renewed, and an endpoint that is silent, or answers 502, 503 or 504, changed, once
    /// each; the call is the same.
    pub async fn call(&self, call: &Call<'_>) -> Result<Bytes, CallError> {
        let (mut stale, mut has_moved, mut answered) = (None, self.endpoints.len() < 2, None);
        loop {
            let token = self.token(stale).await?;
            let answer = self.ask(&token.base, call, Some(&token.bearer)).await;
            match answer {
                Err(error) if error.status() == Some(401) && stale.is_none() => stale = Some(token.login),
                Err(error) if error.is_of_endpoint() && !has_moved => {
                    tracing::debug!(%error, "another endpoint is tried");
                    self.leave(&token).await;
                    has_moved = true;
                    answered = error.status().map(|_| token);
                }
                // It is no better there, so it is not the endpoint: or each such call would end at another one.
                Err(error) if error.is_of_endpoint() => {
                    if let Some(before) = answered {
                        self.go_back(&token, before).await;
                    }
                    return Err(error);
                }
                answer => return answer.map(|answer| answer.body),
            }
        }
    }

    /// How long the token is good for as it is; without one the next call logs in. Waits for nobody.
    pub fn refresh_in(&self) -> Duration {
        let due = *lock(&self.due);
        due.map_or(REFRESH, |due| due.saturating_duration_since(monotonic()))
    }

    fn keep(&self, state: &mut State, token: Option<Token>) {
        *lock(&self.due) = token.as_ref().map(Token::due);
        state.token = token;
    }

    /// Makes the token last longer, or logs in anew if that is refused.
    pub async fn refresh(&self) -> Result<(), CallError> {
        let Some(token) = self.state.lock().await.token.clone() else { return Ok(()) };
        let begun = monotonic();
        let call = Call { name: "refresh", method: Method::POST, path: "/v2/auth/refresh", body: Vec::new() };
        let refreshed = match self.ask(&token.base, &call, Some(&token.bearer)).await {
            Ok(answer) => self.read(&answer, &token.base, token.login),
            Err(error) => Err(error),
        };
        self.helped("refresh_token", begun, refreshed.as_ref().err());
        match refreshed {
            Ok(next) => {
                let mut state = self.state.lock().await;
                // Unless somebody logged in meanwhile.
                if state.token.as_ref().is_some_and(|now| now.login == next.login) {
                    self.keep(&mut state, Some(next));
                }
                Ok(())
            }
            Err(error) => {
                tracing::debug!(%error, "the token was not refreshed; logging in");
                self.token(Some(token.login)).await.map(drop)
            }
        }
    }

    /// A token that is none of login `stale`.
    async fn token(&self, stale: Option<u64>) -> Result<Token, CallError> {
        let mut state = self.state.lock().await;
        let now = monotonic();
        if let Some(token) = &state.token
            && Some(token.login) != stale
            && token.expires.is_none_or(|expires| now < expires)
        {
            return Ok(token.clone());
        }
        let function = if state.logins == 0 { "setup" } else { "reset_api" };
        let token = self.log_in(&mut state).await;
        self.helped(function, now, token.as_ref().err());
        token
    }

    /// Tries the endpoint in use first, then the others in order.
    async fn log_in(&self, state: &mut State) -> Result<Token, CallError> {
        self.keep(state, None);
        let mut failure = CallError::Settings("spec.endpoints is empty: name one".to_owned());
        for offset in 0..self.endpoints.len() {
            let index = (state.current + offset) % self.endpoints.len();
            let Some(base) = self.endpoints.get(index) else { continue };
            match self.log_in_at(base, state.logins + 1).await {
                Ok(token) => {
                    state.current = index;
                    state.logins += 1;
                    self.keep(state, Some(token.clone()));
                    *lock(&self.in_use) = Some(base.clone());
                    return Ok(token);
                }
                // They are refused everywhere, and each try may count against them.
                Err(error @ CallError::CredentialsRefused(_)) => return Err(error),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    async fn log_in_at(&self, base: &str, login: u64) -> Result<Token, CallError> {
        let Credentials { username, password } = &self.credentials;
        let body = serde_json::to_vec(&Login { username, password });
        let body = body.map_err(|error| CallError::Malformed { call: "login", why: error.to_string() })?;
        let call = Call { name: "login", method: Method::POST, path: "/v2/auth/login", body };
        match self.ask(base, &call, None).await {
            Ok(answer) => self.read(&answer, base, login),
            Err(CallError::Status { status: 400 | 401 | 403, .. }) => {
                Err(CallError::CredentialsRefused(base.to_owned()))
            }
            Err(error) => Err(error),
        }
    }

    /// The token in the answer to a login or refresh.
    fn read(&self, answer: &Answer, base: &str, login: u64) -> Result<Token, CallError> {
        let header = answer.headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let bearer = header.and_then(|value| value.split_once(' ')).map(|(_, token)| token.trim().to_owned());
        let why = || "it has no header Authorization with a token".to_owned();
        let bearer = bearer.filter(|token| !token.is_empty());
        let bearer = bearer.ok_or_else(|| CallError::Malformed { call: "login", why: why() })?;
        let refreshed = monotonic();
        let expires = life(&answer.headers).map(|life| refreshed + life);
        Ok(Token { login, base: base.to_owned(), bearer, expires, refreshed })
    }

    /// The endpoint does not answer: the next login begins with the one after it.
    async fn leave(&self, token: &Token) {
        let mut state = self.state.lock().await;
        if state.token.as_ref().is_some_and(|current| current.login == token.login) {
            self.keep(&mut state, None);
            state.current = (state.current + 1) % self.endpoints.len().max(1);
        }
    }

    /// Takes up the login of an endpoint that was left, unless somebody logged in meanwhile.
    async fn go_back(&self, token: &Token, before: Token) {
        let mut state = self.state.lock().await;
        let index = self.endpoints.iter().position(|base| *base == before.base);
        if let Some(index) = index
            && state.token.as_ref().is_some_and(|current| current.login == token.login)
        {
            state.current = index;
            *lock(&self.in_use) = Some(before.base.clone());
            self.keep(&mut state, Some(before));
        }
    }

    async fn ask(&self, base: &str, call: &Call<'_>, bearer: Option<&str>) -> Result<Answer, CallError> {
        // Never closed, so there is always a permit in the end.
        let _permit = self.permits.acquire().await.ok();
        let _counted = self.metrics.requesting();
        let begun = monotonic();
        let (status, answer) = self.http.ask(base, call, bearer).await;
        self.metrics.requested(&call.method, status, since(begun));
        answer
    }

    fn helped(&self, function: &'static str, begun: Instant, error: Option<&CallError>) {
        self.metrics.helped(function, error.map(CallError::reason).unwrap_or_default(), since(begun));
    }
}

/// Seconds since then.
pub(super) fn since(begun: Instant) -> f64 {
    monotonic().saturating_duration_since(begun).as_secs_f64()
}

fn life(headers: &HeaderMap) -> Option<Duration> {
    let text = EXPIRES.iter().find_map(|name| headers.get(*name))?.to_str().ok()?;
    text.trim().parse().ok().map(Duration::from_secs)
}
