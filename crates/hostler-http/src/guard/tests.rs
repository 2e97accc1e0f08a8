//! Requests as they may come, and what becomes of them.

use super::*;

const OK: u16 = 200;

fn guard(reached_by: ReachedBy) -> Guard {
    Guard {
        bearer: BearerToken::new("sesame"),
        hosts: vec!["Build.Example".to_owned()],
        origins: vec!["https://tool.example".to_owned()],
        open_paths: &["/health"],
        reached_by,
        log: Throttle::default(),
    }
}

/// What becomes of a request with these headers: the status, or 200.
fn status(guard: &Guard, target: &str, headers: &[(&str, &str)]) -> u16 {
    let mut request = Request::builder().method("POST").uri(target);
    for (name, value) in headers {
        request = request.header(*name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
    }
    guard.refusal(&request.body(()).unwrap()).map_or(OK, |response| response.status().as_u16())
}

#[test]
fn hosts_are_addresses_localhost_and_the_names_that_are_known() {
    let check = |host: &str| status(&guard(ReachedBy::ClearText), "/health", &[("host", host)]);
    for known in [
        "127.0.0.1",
        "127.0.0.1:80",
        "10.0.0.7:8",
        "[::1]",
        "[::1]:80",
        "localhost",
        "LOCALHOST.:1",
        "build.example",
        "BUILD.example.:80",
    ] {
        assert_eq!(check(known), OK, "{known}");
    }
    for unknown in [
        "attacker.example",
        "localhost.attacker.example",
        "127.0.0.1.attacker.example",
        "notlocalhost",
        "build.example.evil",
        "2130706433",
        "0x7f.1",
        "127.1",
    ] {
        assert_eq!(check(unknown), 421, "{unknown}");
    }
    for bad in ["", ":80", "user@localhost", "localhost/x", "local host", "localhost:x", "[::1"] {
        assert_eq!(check(bad), 400, "{bad:?}");
    }
    let bare = guard(ReachedBy::ClearText);
    assert_eq!(status(&bare, "/health", &[]), 400, "no host");
    assert_eq!(status(&bare, "/health", &[("host", "localhost"), ("host", "localhost")]), 400, "two");
    assert_eq!(status(&bare, "http://localhost/health", &[("host", "localhost")]), OK);
    assert_eq!(status(&bare, "http://other/health", &[("host", "localhost")]), 400, "two opinions");
    assert_eq!(status(&bare, "http://localhost:1/health", &[("host", "localhost:2")]), 400);
    assert_eq!(status(&guard(ReachedBy::UnixSocket), "/health", &[("host", "any.name")]), OK);
}

#[test]
fn pages_of_other_origins_are_refused_whatever_they_leave_out() {
    let check = |headers: &[(&str, &str)]| {
        let headers = [&[("host", "localhost:80")], headers].concat();
        status(&guard(ReachedBy::ClearText), "/health", &headers)
    };
    for welcome in [
        &[][..],
        &[("origin", "http://localhost:80")],
        &[("origin", "http://LOCALHOST:80")],
        &[("origin", "https://tool.example")],
        &[("origin", "https://Tool.Example"), ("sec-fetch-site", "cross-site")],
        &[("sec-fetch-site", "same-origin")],
        &[("sec-fetch-site", "none")],
    ] {
        assert_eq!(check(welcome), OK, "{welcome:?}");
    }
    for refused in [
        &[("origin", "http://localhost")][..],
        &[("origin", "http://localhost:81")],
        &[("origin", "https://localhost:80")],
        &[("origin", "http://127.0.0.1:80")],
        &[("origin", "http://attacker.example")],
        &[("origin", "https://tool.example.attacker.example")],
        &[("origin", "https://tool.example:444")],
        &[("origin", "null")],
        &[("origin", "")],
        &[("origin", "é")],
        &[("origin", "http://localhost:80"), ("origin", "http://localhost:80")],
        &[("sec-fetch-site", "cross-site")],
        &[("sec-fetch-site", "same-site")],
        &[("sec-fetch-site", "same-origin"), ("sec-fetch-site", "cross-site")],
    ] {
        assert_eq!(check(refused), 403, "{refused:?}");
    }
    let tls = guard(ReachedBy::Tls);
    let own = |origin| status(&tls, "/health", &[("host", "build.example"), ("origin", origin)]);
    assert_eq!((own("https://build.example"), own("http://build.example")), (OK, 403));
}

#[test]
fn the_token_is_needed_on_every_path_but_the_open_ones() {
    let check = |target: &str, authorizations: &[&str]| {
        let mut headers = vec![("host", "localhost")];
        headers.extend(authorizations.iter().map(|value| ("authorization", *value)));
        status(&guard(ReachedBy::ClearText), target, &headers)
    };
    for path in [
        "/send",
        "/",
        "/unknown",
        "/healthz",
        "/health/",
        "//health",
        "/health/../send",
        "/%68ealth",
        "/send?token=sesame",
    ] {
        assert_eq!(check(path, &[]), 401, "{path}");
        assert_eq!(check(path, &["Bearer sesame"]), OK, "{path}");
    }
    assert_eq!((check("/health", &[]), check("/health?x", &[])), (OK, OK));
    for good in ["bearer sesame", "BEARER sesame", "Bearer   sesame"] {
        assert_eq!(check("/send", &[good]), OK, "{good}");
    }
    for bad in [
        "",
        "Bearer",
        "Bearer ",
        "Bearersesame",
        "Basic sesame",
        "sesame",
        "Bearer sesam",
        "Bearer sesames",
        "Bearer Sesame",
        "Bearer sésame",
        "Bearer sesame, Bearer sesame",
        "Bearer\tsesame",
    ] {
        assert_eq!(check("/send", &[bad]), 401, "{bad:?}");
    }
    assert_eq!(check("/send", &["Bearer sesame", "Bearer sesame"]), 401, "one header, not two");
}

#[test]
fn no_answer_opens_the_door_to_other_origins_and_none_shows_the_token() {
    let guard = guard(ReachedBy::ClearText);
    let request = Request::builder().method("OPTIONS").uri("/send").header("host", "localhost");
    let response = guard.refusal(&request.body(()).unwrap()).unwrap();
    assert_eq!(response.status(), 401);
    assert_eq!(response.headers()[WWW_AUTHENTICATE], "Bearer");
    assert!(response.headers().keys().all(|name| !name.as_str().starts_with("access-control")));
    assert!(!format!("{guard:?}").contains("sesame"));
}

#[test]
fn a_token_that_no_header_carries_is_none() {
    for bad in ["", "a b", "a\tb", "ä", "a\n"] {
        assert!(BearerToken::new(bad).is_none(), "{bad:?}");
    }
    assert!(BearerToken::new("A-._~+/=9!").is_some());
}
