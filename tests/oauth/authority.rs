//! An authorisation server and an MCP server that checks its tokens, on one socket, with faults.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    convert::Infallible,
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, Instant},
};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{Request, Response, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use mcp_supervisor::{
    auth::{Answer, OAuth, OAuthBuilder},
    credentials::CredentialsError,
};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::net::TcpListener;

/// What the authority does, and what it has seen.
pub(crate) struct Book {
    pub(crate) lifetime: Duration,
    /// Answers of the token endpoint wait this long.
    pub(crate) token_delay: Duration,
    /// The token endpoint fails with this status.
    pub(crate) token_status: Option<u16>,
    /// What the metadata name as issuer, where it is not the authority.
    pub(crate) issuer: Option<String>,
    /// Whether the MCP server wants a token for anything.
    pub(crate) protected: bool,
    /// Whether the MCP server never answers `server/discover`, and `initialize` with a stream.
    pub(crate) mute_and_streaming: bool,
    /// Whether it refuses every token.
    pub(crate) refuses_all: bool,
    pub(crate) asked_for_tokens: usize,
    pub(crate) refreshes: usize,
    pub(crate) registrations: usize,
    pub(crate) authorizations: usize,
    pub(crate) resources: BTreeSet<String>,
    pub(crate) requests: Vec<Seen>,
    pub(crate) secrets: Vec<String>,
    tokens: HashMap<String, (BTreeSet<String>, Instant)>,
    refresh: HashMap<String, BTreeSet<String>>,
    codes: HashMap<String, (String, BTreeSet<String>)>,
    minted: usize,
}

/// A request that the MCP server read.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) verb: String,
    pub(crate) method: String,
    pub(crate) tool: String,
    pub(crate) session: Option<String>,
    pub(crate) token: Option<String>,
    pub(crate) status: u16,
}

#[derive(Clone)]
pub(crate) struct Authority {
    pub(crate) base: String,
    book: Arc<Mutex<Book>>,
}

type Reply = Response<Full<Bytes>>;

const SECRET: &str = "client-secret-of-its-own";

impl Authority {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let book = Book {
            lifetime: Duration::from_secs(3_600),
            token_delay: Duration::ZERO,
            token_status: None,
            issuer: None,
            protected: true,
            mute_and_streaming: false,
            refuses_all: false,
            asked_for_tokens: 0,
            refreshes: 0,
            registrations: 0,
            authorizations: 0,
            resources: BTreeSet::new(),
            requests: Vec::new(),
            secrets: vec![SECRET.to_owned()],
            tokens: HashMap::new(),
            refresh: HashMap::new(),
            codes: HashMap::new(),
            minted: 0,
        };
        let authority = Self {
            base,
            book: Arc::new(Mutex::new(book)),
        };
        let serving = authority.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let authority = serving.clone();
                tokio::spawn(async move {
                    let service = service_fn(move |request| {
                        let authority = authority.clone();
                        async move { Ok::<_, Infallible>(authority.answer(request).await) }
                    });
                    // A client that has gone needs no answer.
                    let _ = http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        authority
    }

    pub(crate) fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap()
    }

    pub(crate) fn url(&self) -> String {
        format!("{}/mcp", self.base)
    }

    pub(crate) fn oauth(&self) -> OAuthBuilder {
        OAuth::for_server(self.url()).redirect_uri("http://127.0.0.1:1/callback")
    }

    pub(crate) fn with_secret(&self) -> OAuthBuilder {
        self.oauth()
            .client_id("robot")
            .client_secret(SECRET)
            .client_credentials()
    }

    /// Every token is refused from now on.
    pub(crate) fn revoke_access_tokens(&self) {
        self.book().tokens.clear();
    }

    pub(crate) fn revoke_refresh_tokens(&self) {
        self.book().refresh.clear();
    }

    /// What the MCP server read with this method, by its answer's status.
    pub(crate) fn statuses(&self, method: &str) -> Vec<u16> {
        let book = self.book();
        let of_it = book.requests.iter().filter(|r| r.method == method);
        of_it.map(|r| r.status).collect()
    }

    async fn answer(&self, request: Request<Incoming>) -> Reply {
        let path = request.uri().path().to_owned();
        let query = request.uri().query().unwrap_or_default().to_owned();
        let headers = request.headers().clone();
        let verb = request.method().to_string();
        let body = request.into_body().collect().await;
        let body = body.map(|b| b.to_bytes()).unwrap_or_default();
        let text = |name: &str| Some(headers.get(name)?.to_str().ok()?.to_owned());
        match path.as_str() {
            "/.well-known/oauth-protected-resource/mcp" => reply(
                200,
                &json!({"resource": self.url(), "authorization_servers": [self.base],
                    "scopes_supported": ["mcp:basic"]}),
            ),
            "/.well-known/oauth-authorization-server" => self.metadata(),
            "/register" => self.register(&body),
            "/authorize" => self.authorize(&form(&query)),
            "/token" => self.token(&form(&String::from_utf8_lossy(&body))).await,
            "/mcp" => {
                let token = text("authorization").map(|t| t.replacen("Bearer ", "", 1));
                let answer = self.mcp(&verb, token, text("mcp-session-id"), &body);
                let discovers = String::from_utf8_lossy(&body).contains("server/discover");
                let mute = self.book().mute_and_streaming;
                if mute && discovers && answer.status() == 200 {
                    std::future::pending::<()>().await;
                }
                answer
            }
            _ => reply(404, &json!({})),
        }
    }

    fn metadata(&self) -> Reply {
        let issuer = self.book().issuer.clone();
        reply(
            200,
            &json!({
                "issuer": issuer.unwrap_or_else(|| self.base.clone()),
                "authorization_endpoint": format!("{}/authorize", self.base),
                "token_endpoint": format!("{}/token", self.base),
                "registration_endpoint": format!("{}/register", self.base),
                "response_types_supported": ["code"],
                "code_challenge_methods_supported": ["S256"],
                "authorization_response_iss_parameter_supported": true,
                "token_endpoint_auth_methods_supported": ["none", "client_secret_post"],
            }),
        )
    }

    fn register(&self, body: &[u8]) -> Reply {
        let asked: Value = serde_json::from_slice(body).unwrap();
        let mut book = self.book();
        book.registrations += 1;
        let id = format!("client-{}", book.registrations);
        reply(
            201,
            &json!({"client_id": id, "redirect_uris": asked["redirect_uris"]}),
        )
    }

    fn authorize(&self, asked: &BTreeMap<String, String>) -> Reply {
        let mut book = self.book();
        book.authorizations += 1;
        assert_eq!(asked["code_challenge_method"], "S256");
        book.resources.insert(asked["resource"].clone());
        let code = book.mint("code");
        let scopes = scopes_in(asked);
        book.codes
            .insert(code.clone(), (asked["code_challenge"].clone(), scopes));
        book.secrets.push(asked["state"].clone());
        let to = format!(
            "{}?code={code}&state={}&iss={}",
            asked["redirect_uri"], asked["state"], self.base
        );
        Response::builder()
            .status(302)
            .header("location", to)
            .body(Full::default())
            .unwrap()
    }

    async fn token(&self, asked: &BTreeMap<String, String>) -> Reply {
        let delay = {
            let mut book = self.book();
            book.asked_for_tokens += 1;
            book.token_delay
        };
        tokio::time::sleep(delay).await;
        let mut book = self.book();
        if asked["grant_type"] == "refresh_token" {
            book.refreshes += 1;
        }
        if let Some(status) = book.token_status {
            return reply(status, &json!({"error": "server_error"}));
        }
        book.resources.insert(asked["resource"].clone());
        let scopes = match asked["grant_type"].as_str() {
            "authorization_code" => {
                let Some((challenge, scopes)) = book.codes.remove(&asked["code"]) else {
                    return reply(400, &json!({"error": "invalid_grant"}));
                };
                assert_eq!(challenge, pkce(&asked["code_verifier"]));
                scopes
            }
            "refresh_token" => match book.refresh.remove(&asked["refresh_token"]) {
                Some(scopes) => scopes,
                None => return reply(400, &json!({"error": "invalid_grant"})),
            },
            "client_credentials" if asked["client_secret"] == SECRET => scopes_in(asked),
            _ => return reply(401, &json!({"error": "invalid_client"})),
        };
        let (token, refresh) = (book.mint("access"), book.mint("refresh"));
        let lives = book.lifetime;
        let until = Instant::now() + lives;
        book.tokens.insert(token.clone(), (scopes.clone(), until));
        let mut answer = json!({"access_token": token, "token_type": "Bearer",
            "expires_in": lives.as_secs(), "scope": scopes.iter().cloned().collect::<Vec<_>>().join(" "),
            "id_token": format!("id-of-{token}")});
        if asked["grant_type"] != "client_credentials" {
            book.refresh.insert(refresh.clone(), scopes);
            answer["refresh_token"] = json!(refresh);
        }
        reply(200, &answer)
    }

    /// Whether the token may do this, as a status and a challenge.
    fn judge(&self, book: &Book, token: Option<&String>, tool: &str) -> (u16, String) {
        let at = format!(
            "resource_metadata=\"{}/.well-known/oauth-protected-resource/mcp\"",
            self.base
        );
        let known = token.and_then(|t| book.tokens.get(t));
        let needed = if tool == "admin" {
            "mcp:admin"
        } else {
            "mcp:basic"
        };
        match known.filter(|(_, until)| *until > Instant::now() && !book.refuses_all) {
            _ if !book.protected => (200, String::new()),
            None => (
                401,
                format!("Bearer error=\"invalid_token\", scope=\"mcp:basic\", {at}"),
            ),
            Some((scopes, _)) if !scopes.contains(needed) => (
                403,
                format!("Bearer error=\"insufficient_scope\", scope=\"{needed}\", {at}"),
            ),
            Some(_) => (200, String::new()),
        }
    }

    fn mcp(
        &self,
        verb: &str,
        token: Option<String>,
        session: Option<String>,
        body: &[u8],
    ) -> Reply {
        let message: Value = serde_json::from_slice(body).unwrap_or_default();
        let method = message["method"].as_str().unwrap_or_default().to_owned();
        let tool = message["params"]["name"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        let mut book = self.book();
        let (status, challenge) = self.judge(&book, token.as_ref(), &tool);
        book.requests.push(Seen {
            verb: verb.to_owned(),
            method: method.clone(),
            tool,
            session,
            token,
            status,
        });
        if status != 200 {
            return Response::builder()
                .status(status)
                .header("www-authenticate", challenge)
                .body(Full::default())
                .unwrap();
        }
        if verb != "POST" {
            return reply(405, &json!({}));
        }
        let about = json!({"name": "authority", "version": "0"});
        let result = match method.as_str() {
            "initialize" => json!({"protocolVersion": message["params"]["protocolVersion"],
                "capabilities": {"tools": {}}, "serverInfo": about}),
            "server/discover" => {
                json!({"resultType": "complete", "supportedVersions": ["2026-07-28"],
                "capabilities": {"tools": {}}, "serverInfo": about, "ttlMs": 0, "cacheScope": "private"})
            }
            "tools/call" => json!({"resultType": "complete", "content": [], "isError": false}),
            _ => return reply(202, &json!({})),
        };
        let text = json!({"jsonrpc": "2.0", "id": message["id"], "result": result});
        let mut answer = reply(200, &text);
        if method == "initialize" {
            if book.mute_and_streaming {
                let event = format!("data: {}\n\n", text);
                answer = Response::builder()
                    .header("content-type", "text/event-stream")
                    .body(Full::from(event))
                    .unwrap();
            }
            let id = book.mint("session");
            answer
                .headers_mut()
                .insert("mcp-session-id", id.parse().unwrap());
        }
        answer
    }
}

impl Book {
    fn mint(&mut self, what: &str) -> String {
        self.minted += 1;
        let name = format!("{what}-{}-planted", self.minted);
        if what != "session" {
            self.secrets.push(name.clone());
        }
        name
    }
}

/// The person: follows the URL to where it redirects, and no further.
pub(crate) async fn consent(url: String) -> Result<Answer, CredentialsError> {
    Answer::from_redirect(&redirected_from(url).await)
}

/// Where a browser is sent by this URL.
pub(crate) async fn redirected_from(url: String) -> String {
    let browser = reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .build()
        .unwrap();
    let sent = browser.get(url).send().await.unwrap();
    sent.headers()["location"].to_str().unwrap().to_owned()
}

fn reply(status: u16, body: &Value) -> Reply {
    Response::builder()
        .status(status)
        .header("content-type", "application/json")
        .body(Full::from(body.to_string()))
        .unwrap()
}

fn form(text: &str) -> BTreeMap<String, String> {
    let url = reqwest::Url::parse(&format!("http://h/?{text}")).unwrap();
    url.query_pairs().into_owned().collect()
}

fn scopes_in(asked: &BTreeMap<String, String>) -> BTreeSet<String> {
    let scopes = asked.get("scope").map(String::as_str).unwrap_or_default();
    scopes.split_whitespace().map(str::to_owned).collect()
}

/// RFC 7636: the digest of the verifier, in base64url without padding.
fn pkce(verifier: &str) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let digest = Sha256::digest(verifier.as_bytes());
    let mut text = String::new();
    for chunk in digest.chunks(3) {
        let mut bits = [0_u8; 3];
        bits[..chunk.len()].copy_from_slice(chunk);
        let bits = u32::from_be_bytes([0, bits[0], bits[1], bits[2]]);
        for place in 0..=chunk.len() {
            let index = (bits >> (18 - 6 * place)) & 63;
            text.push(char::from(ALPHABET[index as usize]));
        }
    }
    text
}
