use serde_json::json;

use super::*;

#[test]
fn credentials_in_objects_are_masked_and_references_to_them_are_not() {
    let mut pod = json!({
        "metadata": {
            "name": "p",
            "managedFields": [{ "manager": "m" }],
            "annotations": { LAST_APPLIED: "{\"x\":1}", "example.com/api-token": "t1", "bulkhead.dev/paused": "upgrade" },
        },
        "spec": {
            "automountServiceAccountToken": false,
            "imagePullSecrets": [{ "name": "registry" }],
            "containers": [{
                "args": ["--listen=:8080", "--db-password=p1", "--secret-key", "p2", "--verbose", "https://u:p3@host/x"],
                "env": [
                    { "name": "AWS_SECRET_ACCESS_KEY", "value": "p4" },
                    { "name": "LOG", "value": "info" },
                    { "name": "PASSWORD", "valueFrom": { "secretKeyRef": { "name": "s", "key": "k" } } },
                ],
                "volumeMounts": [{ "name": "token", "mountPath": "/var/run/token" }],
            }],
            "volumes": [{ "name": "tls", "secret": { "secretName": "tls", "defaultMode": 420 } }],
        },
        "data": { "config.yaml": "user: u\npassword: p5\n", "token": "p6" },
        "binaryData": { "x": "cDc=" },
    });
    object(&mut pod);
    let text = pod.to_string();
    for gone in ["p1", "p2", "p3", "p4", "p5", "p6", "cDc=", "t1", "managedFields", "{\\\"x"] {
        assert!(!text.contains(gone), "{gone} is in {text}");
    }
    for kept in [
        "registry",
        "--listen=:8080",
        "--verbose",
        "info",
        "secretKeyRef",
        "\"tls\"",
        "upgrade",
        "/var/run/token",
        "user: u",
    ] {
        assert!(text.contains(kept), "{kept} is not in {text}");
    }
}

#[test]
fn credentials_in_lines_are_masked() {
    let jwt = "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrdWJlcm5ldGVzIn0.c2lnbmF0dXJl";
    let got = format!("got {jwt}");
    let keyring = format!("\tkey = AQ{}==", "B+/x".repeat(9));
    let cases = [
        ("login password=hunter2 ok", "login password=(redacted) ok"),
        (r#"{"token":"abc","n":1}"#, r#"{"token":"(redacted)","n":1}"#),
        ("Authorization: Bearer abc", "Authorization: (redacted)"),
        ("GET https://u:hunter2@host:8443/x?api_key=abc", "GET https://u:(redacted)@host:8443/x?api_key=(redacted)"),
        (got.as_str(), "got (redacted)"),
        ("key AKIAIOSFODNN7EXAMPLE refused", "key (redacted) refused"),
        (keyring.as_str(), "\tkey = (redacted)=="),
        ("root:hunter2@tcp(db:3306)/x?tls=true", "root:(redacted)@tcp(db:3306)/x?tls=true"),
        ("curl -u bob:hunter2 https://host", "curl -u (redacted) https://host"),
        ("sudo -u bob ls", "sudo -u bob ls"),
        ("args:\n- -u\n- bob:hunter2\n- -v", "args:\n- -u\n(redacted)\n- -v"),
        ("requirepass hunter2", "requirepass (redacted)"),
        ("client-key-data: LS0tLS1CRUdJTiBSU0E=", "client-key-data: (redacted)"),
        ("tls.key: LS0tLS1CRUdJTiBSU0E=", "tls.key: (redacted)="),
        ("pull root:hunter2@host,host:5000/x@sha256:0a", "pull root:(redacted)@host,host:5000/x@sha256:0a"),
        ("volume pvc-1: StillPublished: listed still", "volume pvc-1: StillPublished: listed still"),
        ("the token has expired", "the token has expired"),
        ("secretName: tls", "secretName: tls"),
        ("a\n-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----\nb", "a\n(redacted)\nb"),
    ];
    for (line, masked) in cases {
        assert_eq!(text(line), masked);
    }
}

#[test]
fn a_text_without_credentials_stays_as_it_is() {
    let log =
        "2026-11-23T02:00:00Z  INFO reconcile{queue=\"node_fence\" key=node-1}: released grace_seconds=0\n\n\tat (x)\n";
    assert_eq!(text(log), log);
}

#[test]
fn references_of_images_stay_readable() {
    for image in [
        "image: host:5000/x/bulkhead:v1.2@sha256:0a1b",
        "pulled docker-pullable://host:5000/x@sha256:0a1b in 2 s",
        "{\"imageID\":\"docker.io/library/nginx@sha256:0a1b\"}",
        "image: nginx:1.27",
    ] {
        assert_eq!(text(image), image);
    }
}

#[test]
fn values_are_masked_whole_however_they_are_written() {
    let cases = [
        ("password: correct horse battery", "password: (redacted)"),
        ("password: \"correct horse\" # why", "password: \"(redacted)\" # why"),
        ("password: 'it''s a horse'\nuser: u", "password: '(redacted)'\nuser: u"),
        ("password: \"correct\n  horse\"\nuser: u", "password: \"(redacted)\n\"\nuser: u"),
        ("password: |\n  correct\n\n  horse\nuser: u", "password: (redacted)\nuser: u"),
        ("a:\n  - pass: >-\n      correct\n      horse\n    user: u", "a:\n  - pass: (redacted)\n    user: u"),
        ("pwd:\n  correct\nuser: u", "pwd:(redacted)\nuser: u"),
        ("passwords:\n- correct\n- horse\nuser: u", "passwords:(redacted)\nuser: u"),
        ("credentials: {\n  \"x\": \"horse\"\n}", "credentials: (redacted)\n}"),
        (r#"{"user":"u","dsn":"correct horse","n":1}"#, r#"{"user":"u","dsn":"(redacted)","n":1}"#),
        (r#"{"body":"{\"apikey\":\"a \\\"b\\\" c\",\"n\":1}"}"#, r#"{"body":"{\"apikey\":\"(redacted)\",\"n\":1}"}"#),
        ("{user: u, passphrase: correct horse, n: 1}", "{user: u, passphrase: (redacted), n: 1}"),
        (
            "INFO reconcile{key=n}: login failed: password: hunter2,abc} def",
            "INFO reconcile{key=n}: login failed: password: (redacted)",
        ),
        (r#"{"user":"[u"} password: hunter2,abc"#, r#"{"user":"[u"} password: (redacted)"#),
        ("run --password hunter2 --verbose", "run --password (redacted) --verbose"),
        ("run --password 'correct horse' --verbose", "run --password '(redacted)' --verbose"),
        ("run --password=\"correct horse\" --verbose", "run --password=\"(redacted)\" --verbose"),
        (r#"["--password","correct horse","-v"]"#, r#"["--password","(redacted)","-v"]"#),
        ("args:\n- --password\n- correct horse\n- -v", "args:\n- --password\n(redacted)\n- -v"),
        ("run PGPASS=hunter2,x;y psql", "run PGPASS=(redacted) psql"),
        ("export DB_PASS=correct horse", "export DB_PASS=(redacted)"),
        ("GET /x?signature=abc%2F&n=1 200", "GET /x?signature=(redacted) 200"),
        ("https://u:hun/ter@2@host/x", "https://u:(redacted)@host/x"),
        ("https://hunter2@host/x", "https://(redacted)@host/x"),
        ("<password>correct horse</password><n>1</n>", "<password>(redacted)</password><n>1</n>"),
        (
            "- name: DB_PASSWORD\n  value: correct horse\n- name: LOG\n  value: info",
            "- name: DB_PASSWORD\n  value: (redacted)\n- name: LOG\n  value: info",
        ),
        (
            "2026-11-23T02:00:00.123456789Z password: correct horse",
            "2026-11-23T02:00:00.123456789Z password: (redacted)",
        ),
        (
            "2026-11-23T03:00:00.1+01:00 password: |\n2026-11-23T03:00:00.2+01:00   correct\n2026-11-23T03:00:00-03:30 user: u",
            "2026-11-23T03:00:00.1+01:00 password: (redacted)\n2026-11-23T03:00:00-03:30 user: u",
        ),
        ("\"passwords\": [\n\"horse\",\n\"]\"\n],\n\"n\": 1", "\"passwords\": (redacted)\n],\n\"n\": 1"),
        ("failed: tokens: [correct,\n{horse]}\nuser: u", "failed: tokens: (redacted)\n]}\nuser: u"),
        ("level=info passwords=[correct horse] n=1", "level=info passwords=(redacted) n=1"),
        (r#"{"message":"passwords: [correct","n":1}"#, r#"{"message":"passwords: (redacted)","n":1}"#),
        ("MIIE\n-----END PRIVATE KEY-----\nb", "(redacted)\nb"),
        ("crate::token::Error: gone", "crate::token::Error: gone"),
    ];
    for (line, masked) in cases {
        assert_eq!(text(line), masked);
    }
}

#[test]
fn all_of_a_field_that_is_named_like_a_credential_is_masked() {
    let mut values = json!({
        "passwords": ["p1", { "x": "p2" }],
        "credentials": { "user": "p3", "secretName": "s" },
        "pin": { "password": 4711 },
        "args": ["--pass", "-p4", "--pass", "--token", "p5", "--dsn=p6 p7"],
    });
    object(&mut values);
    let text = values.to_string();
    for gone in ["p1", "p2", "p3", "4711", "p4", "p5", "p6", "p7"] {
        assert!(!text.contains(gone), "{gone} is in {text}");
    }
    assert!(text.contains("\"s\""), "{text}");
}
