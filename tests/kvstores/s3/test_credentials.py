"""Where the keys for S3 come from, and what services that hand them out may do."""

import contextlib
import datetime
import hashlib
import io
import json
import os
import subprocess
import sys
import threading
import zipfile
from urllib.parse import parse_qs

import pytest
from botocore.credentials import SSOProvider

import gpustore
from gpustore.errors import NotFoundError, StoreIOError, UnsupportedError
from gpustore.kvstores.buckets import machine
from gpustore.kvstores.http import connection
from gpustore.kvstores.kvstore import KvStore
from gpustore.kvstores.s3 import credentials
from gpustore.runtime.executor import Executor
from tests.kvstores.buckets.bucket_contract import ACTIONS
from tests.kvstores.buckets.credential_contract import (
    check_fork_while_another_thread_asks,
    check_forked_child_finds_credentials,
    hide_home,
)
from tests.kvstores.http.http_server import Fault, HttpServer, head
from tests.kvstores.http.tls import Authority, TlsServer
from tests.kvstores.s3.s3_server import open_s3, refuse, shown_by
from tests.matrix import each

LATER = "2999-01-01T00:00:00Z"
ROLE = "arn:aws:iam::1:role/r"


def key_of(request):
    """Whose signature a request has; empty for none."""
    return shown_by(request).get("Credential", "").partition("/")[0]


def sts_answer(action="AssumeRoleWithWebIdentity", key="WK", ends=LATER):
    found = {"AccessKeyId": key, "SecretAccessKey": "SECRET", "SessionToken": "WT"}
    found["Expiration"] = ends
    body = "".join(f"<{name}>{value}</{name}>" for name, value in found.items())
    name = f"{action}Result"
    body = f"<{name}><Credentials>{body}</Credentials></{name}>"
    return f"<{action}Response>{body}</{action}Response>".encode()


def keys_as_json(key="EK", ends=LATER):
    found = {"AccessKeyId": key, "SecretAccessKey": "SECRET", "Token": "ET", "Expiration": ends}
    return json.dumps(found).encode()


def soon(minutes):
    """A time at which keys end that have to be renewed by then."""
    ends = datetime.datetime.now(datetime.UTC) + datetime.timedelta(minutes=minutes)
    return ends.strftime("%Y-%m-%dT%H:%M:%SZ")


def say(body, status=200, **fields):
    """A fault that answers so."""
    text = body.encode() if isinstance(body, str) else body
    fields = {"Content-Length": len(text), **fields}
    return lambda s, c, r: c.sendall(head(status, fields.items()) + text)


@pytest.fixture
def keyless(server, monkeypatch, tmp_path):
    """Nothing is known of any credentials; files can be written into the folder."""
    for name in os.environ:
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(machine, "FIRMWARE", tmp_path)
    sent = []
    monkeypatch.setattr("botocore.httpsession.URLLib3Session.send", lambda *args: sent.append(args))
    yield tmp_path
    assert sent == []  # botocore has to ask us to send.


@pytest.fixture
def sts(keyless, monkeypatch):
    """A service that hands out keys for a token or other keys, over TLS."""
    authority = Authority(keyless)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.path))
    monkeypatch.setattr(connection, "_TLS", [])
    with TlsServer(authority.context(), {"": sts_answer()}) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", server.url)
        yield server


@pytest.fixture
def web_identity(sts, keyless, monkeypatch):
    (keyless / "token").write_text("TOKEN")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(keyless / "token"))
    monkeypatch.setenv("AWS_ROLE_ARN", ROLE)
    return sts


# ------------------------------------------------------------------------- the environment


def test_keys_of_the_environment_are_those_of_the_time_of_opening(server, monkeypatch):
    stores = []
    for key in ("FIRST", "SECOND"):
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
        monkeypatch.setenv("AWS_SESSION_TOKEN", f"{key}-TOKEN\n")
        stores.append(open_s3(server))
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    for key, store in zip(("FIRST", "SECOND"), stores, strict=True):
        server.requests.clear()
        store.read("a").result()
        store.list().result()
        for sent in server.requests:
            assert key_of(sent) == key
            assert sent.headers["x-amz-security-token"] == f"{key}-TOKEN"
    with pytest.raises(NotFoundError, match="none in the environment variables"):
        open_s3(server)


def test_keys_that_would_break_a_header_are_refused(server, monkeypatch):
    monkeypatch.setenv("AWS_SESSION_TOKEN", "SECRET\r\nEvil: 1")
    with pytest.raises(StoreIOError, match="not visible ASCII") as caught:
        open_s3(server)
    assert "SECRET" not in str(caught.value)


def test_what_lies_in_a_bucket_is_read_by_who_opens_it(server, monkeypatch):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("a", b"1")
    server.values["bucket/x.zip"] = data.getvalue()
    stores, context = [], gpustore.Context()
    for key in ("FIRST", "SECOND"):
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
        server.requests.clear()
        base = {"driver": "s3", "bucket": "bucket", "endpoint": server.url, "path": "x.zip"}
        opened = KvStore.open({"driver": "zip", "base": base}, context=context).result()
        stores.append(opened)
        assert stores[-1]["a"] == b"1"
        assert {key_of(sent) for sent in server.requests} == {key}


BLOCKED = """
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("botocore", "google"):
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Block())
import gpustore
store = gpustore.KvStore.open(
    {{"driver": "s3", "bucket": "bucket", "endpoint": "{url}"}}
).result()
store["a"] = b"1"
print(store.list().result(), store["a"])
for source in ({{"type": "profile"}}, {{"type": "imds"}}, {{"type": "ecs"}}):
    try:
        gpustore.KvStore.open(
            {{"driver": "s3", "bucket": "bucket", "aws_credentials": source}}
        ).result()
    except gpustore.UnsupportedError as error:
        print(error)
"""


@pytest.mark.matrix("costly")
@pytest.mark.parametrize("key", ["KEY", ""])
def test_package_is_needed_for_credentials_that_only_it_finds(server, keyless, monkeypatch, key):
    """Keys of the environment and anonymous requests need none."""
    if key:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "SECRET")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", BLOCKED.format(url=server.url)],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.stderr == ""
    first, *errors = done.stdout.splitlines()
    assert first == "[b'a'] b'1'"
    assert {key_of(sent) for sent in server.requests} == {key}
    assert len(errors) == 3
    assert all("botocore: pip install 'gpustore[cloud]'" in one for one in errors)


# ------------------------------------------------------------------------- profiles


def test_profile_is_read_from_its_files(server, keyless, monkeypatch):
    open_s3(server).read("a").result()
    assert key_of(server.requests[-1]) == ""
    server.faults = [Fault(lambda s, c, r: refuse(c, 403, "AccessDenied"), times=1)]
    with pytest.raises(StoreIOError, match="AccessDenied; the request was anonymous: see the con"):
        open_s3(server).read("a").result()
    (keyless / "credentials").write_text(
        "[default]\naws_access_key_id=D\naws_secret_access_key=S%x\n"
        "[work]\naws_access_key_id=W\naws_secret_access_key=W2\naws_session_token=W3\n"
    )
    (keyless / "config").write_text("[default]\nregion=eu-west-1\n[profile work]\nregion=eu-west-2")
    open_s3(server).read("a").result()
    assert key_of(server.requests[-1]) == "D"
    assert "/eu-west-1/s3/" in shown_by(server.requests[-1])["Credential"]
    for source in ({"type": "profile", "profile": "work"}, {"type": "default", "profile": "work"}):
        open_s3(server, aws_credentials=source).read("a").result()
        assert key_of(server.requests[-1]) == "W"
        assert "/eu-west-2/s3/" in shown_by(server.requests[-1])["Credential"]
        assert server.requests[-1].headers["x-amz-security-token"] == "W3"
    (keyless / "credentials").rename(keyless / "elsewhere")
    source = {"type": "profile", "credentials_file": str(keyless / "elsewhere")}
    open_s3(server, aws_credentials=source).read("a").result()
    assert key_of(server.requests[-1]) == "D"
    (keyless / "elsewhere").rename(keyless / "credentials")
    # A token of the environment does not belong to these keys.
    monkeypatch.setenv("AWS_SESSION_TOKEN", "OTHER")
    store = open_s3(server)
    server.requests.clear()
    store.read("a").result()
    store.list().result()
    assert {key_of(sent) for sent in server.requests} == {"D"}
    assert not any("OTHER" in str(sent) for sent in server.requests)
    with pytest.raises(NotFoundError, match='no keys in profile "none"'):
        open_s3(server, aws_credentials={"type": "profile", "profile": "none"})
    with pytest.raises(NotFoundError, match="none in the environment variables"):
        open_s3(server, aws_credentials={"type": "environment"})
    monkeypatch.setenv("AWS_PROFILE", "none")
    with pytest.raises(NotFoundError, match='no keys in profile "none"'):
        open_s3(server)
    monkeypatch.setenv("AWS_PROFILE", "work")
    open_s3(server).read("a").result()
    assert key_of(server.requests[-1]) == "W"
    (keyless / "credentials").write_text("[a\nSECRET")
    with pytest.raises(NotFoundError, match=r'credentials" cannot be read as profiles') as caught:
        open_s3(server)
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[default]\naws_access_key_id=SECRET\n", "PartialCredentialsError"),
        ("[default]\nrole_arn=r\nsource_profile=none\n", "InvalidConfigError"),
        ("[default]\nregion=x\n", ""),
    ],
)
def test_profile_without_keys_is_an_error(server, keyless, text, why):
    (keyless / "credentials").write_text(text)
    store = open_s3(server, aws_credentials={"type": "profile"})
    with pytest.raises(StoreIOError, match=rf"there are no credentials, or .*{why}") as caught:
        store.read("a").result()
    assert "SECRET" not in str(caught.value)
    assert server.requests == []


def test_files_without_keys_leave_requests_anonymous(server, keyless):
    (keyless / "config").write_text("[default]\nregion=eu-west-1\n")
    store = open_s3(server)
    store.read("a").result()
    assert store.list().result() == []
    assert {key_of(sent) for sent in server.requests} == {""}
    server.faults = [Fault(lambda s, c, r: refuse(c, 403, "AccessDenied"), times=1)]
    with pytest.raises(StoreIOError, match="AccessDenied; the request was anonymous: see the con"):
        store.read("a").result()


@pytest.mark.parametrize("mode", ["", "defaults_mode=auto\n"])
def test_role_of_a_profile_is_taken_on(server, sts, keyless, mode):
    sts.values[""] = sts_answer("AssumeRole", "RK")
    (keyless / "config").write_text(
        f"[profile role]\nrole_arn={ROLE}\nsource_profile=base\nregion=eu-west-3\n{mode}"
        "[profile base]\naws_access_key_id=BK\naws_secret_access_key=SECRET\n"
    )
    store = open_s3(server, aws_credentials={"type": "profile", "profile": "role"})
    assert sts.requests == []  # Not before it is needed.
    store["a"] = b"1"
    assert store["a"] == b"1"
    assert store.list().result() == [b"a"]
    assert {key_of(sent) for sent in server.requests} == {"RK"}
    [asked] = sts.requests
    assert parse_qs(asked.body.decode())["RoleArn"] == [ROLE]
    assert asked.headers["authorization"].startswith("AWS4-HMAC-SHA256 Credential=BK/")
    assert "/eu-west-3/sts/" in asked.headers["authorization"]


def test_role_that_wants_a_code_is_an_error(server, sts, keyless):
    (keyless / "config").write_text(
        f"[default]\nrole_arn={ROLE}\nsource_profile=base\nmfa_serial=m\n"
        "[profile base]\naws_access_key_id=BK\naws_secret_access_key=SECRET\n"
    )
    with pytest.raises(StoreIOError, match=r"code of a device \(mfa_serial\)"):
        open_s3(server).read("a").result()
    assert sts.requests == server.requests == []


def test_who_has_signed_on_gets_keys(server, sts, keyless, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_SSO", sts.url)
    (keyless / "config").write_text(
        "[profile sso]\nsso_start_url=https://s\nsso_region=us-east-1\nsso_account_id=1\n"
        "sso_role_name=r\n"
    )
    # Where that is was decided when it was imported.
    monkeypatch.setattr(SSOProvider, "_SSO_TOKEN_CACHE_DIR", str(keyless / "sso"))
    cached = keyless / "sso" / f"{hashlib.sha1(b'https://s').hexdigest()}.json"
    store = open_s3(server, aws_credentials={"type": "profile", "profile": "sso"})
    with pytest.raises(StoreIOError, match=r"no credentials, or .*SSO"):
        store.read("a").result()
    cached.parent.mkdir()
    cached.write_text(json.dumps({"accessToken": "TOKEN", "expiresAt": LATER}))
    found = {"accessKeyId": "SK", "secretAccessKey": "SECRET", "sessionToken": "ST"}
    found["expiration"] = 32472144000000
    sts.values["federation/credentials"] = json.dumps({"roleCredentials": found}).encode()
    store["a"] = b"1"
    assert store["a"] == b"1"
    assert {key_of(sent) for sent in server.requests} == {"SK"}
    [asked] = sts.requests
    assert asked.headers["x-amz-sso_bearer_token"] == "TOKEN"
    sts.faults = [Fault(say('{"__type": "UnauthorizedException"}', 401))]
    store = open_s3(server, aws_credentials={"type": "profile", "profile": "sso"})
    with pytest.raises(StoreIOError, match=r"code 401\]: UnauthorizedException") as caught:
        store.read("a").result()
    assert "TOKEN" not in str(caught.value)


def program(folder, text):
    """A profile whose program does so."""
    (folder / "program.py").write_text(text)
    line = f"credential_process={sys.executable} {folder / 'program.py'}\n"
    (folder / "config").write_text(f"[default]\n{line}")


def test_program_hands_out_keys(server, keyless):
    found = {"Version": 1, "AccessKeyId": "PK", "SecretAccessKey": "SECRET", "Expiration": LATER}
    program(keyless, f"print({json.dumps(json.dumps(found))})")
    store = open_s3(server)
    store["a"] = b"1"
    assert store["a"] == b"1"
    assert {key_of(sent) for sent in server.requests} == {"PK"}


@pytest.mark.parametrize(
    ("text", "limit_s", "why"),
    [
        ("import sys; sys.exit('SECRET')", 60, "CredentialRetrievalError"),
        ("print('SECRET')", 60, "JSONDecodeError"),
        ('print(\'{"Version": 1, "AccessKeyId": "SECRET"}\')', 60, "CredentialRetrievalError"),
        ("import signal; signal.pause()", 0.05, "has not ended within 0.05 s"),
    ],
)
def test_program_that_hands_out_none_is_an_error(
    server, keyless, monkeypatch, caplog, text, limit_s, why
):
    monkeypatch.setattr(credentials, "_PROGRAM_S", limit_s)
    program(keyless, text)
    with pytest.raises(StoreIOError, match=rf"there are no credentials, or .*{why}") as caught:
        open_s3(server).read("a").result()
    assert "SECRET" not in f"{caught.value} {caplog.text}"
    assert server.requests == []


# ------------------------------------------------------------------------- services


def test_token_of_somebody_else_is_changed_for_credentials(server, web_identity):
    store = open_s3(server)
    store["a"] = b"1"
    assert store["a"] == b"1"
    assert store.list().result() == [b"a"]
    assert {key_of(sent) for sent in server.requests} == {"WK"}
    assert {sent.headers["x-amz-security-token"] for sent in server.requests} == {"WT"}
    [asked] = web_identity.requests
    assert (asked.method, asked.target) == ("POST", "/")
    assert "authorization" not in asked.headers
    form = parse_qs(asked.body.decode())
    assert form.pop("RoleSessionName")
    assert form == {
        "Action": ["AssumeRoleWithWebIdentity"],
        "Version": ["2011-06-15"],
        "RoleArn": [ROLE],
        "WebIdentityToken": ["TOKEN"],
    }


@pytest.mark.matrix("costly")
def test_service_of_the_region_is_asked(server, sts, keyless, monkeypatch):
    sts.values[""] = sts_answer("AssumeRole")
    (keyless / "config").write_text(
        f"[default]\nrole_arn={ROLE}\nsource_profile=base\nregion=eu-west-3\n"
        "[profile base]\naws_access_key_id=BK\naws_secret_access_key=SECRET\n"
    )
    open_s3(server).read("a").result()
    open_s3(server, aws_region="cn-north-1").read("a").result()
    monkeypatch.setenv("AWS_REGION", "eu-west-2")
    open_s3(server).read("a").result()
    regions = [shown_by(sent)["Credential"].split("/")[2] for sent in sts.requests]
    assert regions == ["eu-west-3", "cn-north-1", "eu-west-2"]


def test_keys_are_renewed_in_time_and_once_for_all_threads(server, web_identity):
    web_identity.values[""] = sts_answer(ends=soon(5))
    store = open_s3(server)
    store["a"] = b"1"
    web_identity.values[""] = sts_answer(key="SECOND")
    gate = threading.Barrier(8)

    def read():
        gate.wait(30)
        assert store.driver.read_many(gpustore.kvstores.kvstore.ReadRequest(["a"])).value[0] == b"1"

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert {key_of(sent) for sent in server.requests[1:]} == {"SECOND"}
    assert len(web_identity.requests) == 2


def long_answer(server, connection, request):
    """Who takes as much memory as is announced has none left."""
    with contextlib.suppress(OSError):
        connection.sendall(head(200, [("Content-Length", 1 << 40)]) + bytes(1 << 20))
    return False


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (long_answer, "ResponseParserError"),
        (say("garbage"), "ResponseParserError"),
        (say(sts_answer(key="a b")), "a key is not visible ASCII"),
        (say(sts_answer(ends="2001-01-01T00:00:00Z")), "RuntimeError"),
        (lambda s, c, r: refuse(c, 403, "AccessDenied"), r"code 403\]: AccessDenied"),
        (lambda s, c, r: refuse(c, 500, "x"), r"All 3 retry attempts failed, .*code 500\]"),
        (lambda s, c, r: refuse(c, 307, "x", [("Location", f"{s.url}/x")]), r"code 307\]"),
        (lambda s, c, r: s.stopped.wait(60) and False, "no data for 0.05 s"),
    ],
)
@each("action", ACTIONS.values(), ids=ACTIONS)
def test_service_that_has_no_credentials_is_named(
    server, web_identity, caplog, answer, text, action
):
    web_identity.faults = [Fault(answer)]
    store = open_s3(server, http_request_timeouts={"idle": "50ms"})
    with pytest.raises(StoreIOError, match=rf"there are no credentials, or .*{text}") as caught:
        action(store)
    assert not [s for s in ("TOKEN", "SECRET", "WT") if s in f"{caught.value} {caplog.text}"]
    assert server.requests == []


@pytest.mark.matrix("costly")
def test_service_that_says_no_is_not_asked_for_ever(server, web_identity):
    web_identity.faults = [Fault(lambda s, c, r: refuse(c, 403, "AccessDenied"))]
    with pytest.raises(StoreIOError, match="AccessDenied"):
        open_s3(server).read("a").result()
    assert len(web_identity.requests) == 1


def test_credentials_of_a_container_are_fetched_and_not_shown(server, keyless):
    (keyless / "token").write_text("TOKEN")
    with HttpServer({"credentials": keys_as_json()}) as service:
        source = {"type": "ecs", "endpoint": f"{service.url}/credentials"}
        source["auth_token_file"] = str(keyless / "token")
        store = open_s3(server, aws_credentials=source)
        store["a"] = b"1"
        assert store["a"] == b"1"
        assert {key_of(sent) for sent in server.requests} == {"EK"}
        assert server.requests[-1].headers["x-amz-security-token"] == "ET"
        assert [sent.headers["authorization"] for sent in service.requests] == ["TOKEN"]
        server.requests.clear()
        service.faults = [Fault(lambda s, c, r: refuse(c, 403, "Forbidden"))]
        store = open_s3(server, aws_credentials=source)
        for call in (lambda: store.read("a").result(), lambda: store.write("a", b"").result()):
            with pytest.raises(StoreIOError, match=r"bucket/a.*: .*HTTP code 403\]") as caught:
                call()
            assert "TOKEN" not in str(caught.value)
            assert "for a public bucket: aws_credentials of the type" in str(caught.value)
        assert server.requests == []


def test_only_who_is_named_hands_out_credentials(server, web_identity, keyless, monkeypatch):
    """Web identity would go first by default, and is over TLS."""
    web_identity.values["keys"] = keys_as_json()
    (keyless / "bearer").write_text("BEARER")
    source = {"type": "ecs", "endpoint": f"{web_identity.url}/keys"}
    source["auth_token_file"] = str(keyless / "bearer")
    open_s3(server, aws_credentials=source).read("a").result()
    assert key_of(server.requests[-1]) == "EK"
    web_identity.faults = [Fault(long_answer)]
    with pytest.raises(StoreIOError) as caught:
        open_s3(server, aws_credentials=source).read("a").result()
    assert "BEARER" not in str(caught.value)
    assert {sent.method for sent in web_identity.requests} == {"GET"}
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{web_identity.url}/keys")
    web_identity.faults.clear()
    web_identity.requests.clear()
    open_s3(server, aws_credentials={"type": "ecs"}).read("a").result()
    open_s3(server).read("a").result()
    assert [sent.target for sent in web_identity.requests] == ["/keys", "/"]


def test_nobody_who_is_not_asked_for_credentials_gets_a_request(server, keyless):
    with HttpServer({"credentials": b"{}"}) as service, HttpServer() as other:
        fields = [("Location", f"{other.url}/credentials"), ("Content-Length", 0)]
        service.faults = [Fault(lambda s, c, r: c.sendall(head(302, fields)))]
        (keyless / "token").write_text("TOKEN")
        source = {"type": "ecs", "endpoint": f"{service.url}/credentials"}
        source["auth_token_file"] = str(keyless / "token")
        with pytest.raises(StoreIOError, match=r"no credentials, or .*Found \[HTTP code 302\]"):
            open_s3(server, aws_credentials=source).read("a").result()
        assert len(service.requests) == 1
        assert other.requests == server.requests == []


IMDS = "latest/meta-data/iam/security-credentials/"


@pytest.fixture
def metadata(keyless, monkeypatch):
    """The service of a machine."""

    def answer(server, connection, request):
        if request.path == "/latest/api/token":
            return say("SESSION")(server, connection, request)
        assert request.headers["x-aws-ec2-metadata-token"] == "SESSION"
        return server.serve(connection, request)

    with HttpServer({IMDS: b"role", f"{IMDS}role": keys_as_json("MK")}) as service:
        service.faults = [Fault(answer)]
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", service.url)
        yield service


@pytest.mark.parametrize(
    ("maker", "disabled", "signs"),
    [("Amazon EC2\n", "", True), ("Amazon EC2\n", "true", False), ("QEMU\n", "", False)],
)
def test_only_a_machine_of_amazon_is_asked_for_credentials(
    server, keyless, metadata, monkeypatch, maker, disabled, signs
):
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", disabled)
    (keyless / "sys_vendor").write_text(maker)
    (keyless / "config").write_text("[default]\nregion=x\n")
    open_s3(server).read("a").result()
    assert key_of(server.requests[-1]) == ("MK" if signs else "")
    assert bool(metadata.requests) == signs


def test_machine_that_is_named_is_asked(server, metadata, web_identity):
    open_s3(server, aws_credentials={"type": "imds"}).read("a").result()
    assert key_of(server.requests[-1]) == "MK"
    assert web_identity.requests == []


def test_machine_without_a_role_is_an_error(server, keyless, metadata):
    (keyless / "sys_vendor").write_text("Amazon EC2\n")
    metadata.values.clear()
    for source in ({"type": "default"}, {"type": "imds"}):
        store = open_s3(server, aws_credentials=source)
        with pytest.raises(StoreIOError, match=r"there are no credentials, or .*code 404\]"):
            store.read("a").result()
    assert server.requests == []


@pytest.mark.parametrize("home", ["/" + "x" * 300, None])
def test_home_that_cannot_be_looked_into_has_no_files(server, keyless, monkeypatch, home):
    """Programs in containers often run as a user without a home, or with that of another one."""
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.delenv(name)
    hide_home(monkeypatch, home)
    open_s3(server).read("a").result()
    assert key_of(server.requests[-1]) == ""


@pytest.mark.matrix("costly")
def test_forked_child_fetches_credentials_itself(server, web_identity):
    spec = {"driver": "s3", "bucket": "bucket", "endpoint": server.url}
    opening = f"import gpustore\nstore = gpustore.KvStore.open({spec}).result()\n"
    check_forked_child_finds_credentials(opening, web_identity)
    assert {key_of(sent) for sent in server.requests} == {"WK"}


@pytest.mark.matrix("costly")
def test_fork_while_another_thread_asks_does_not_wait_for_ever(server, web_identity):
    store = open_s3(server)
    check_fork_while_another_thread_asks(web_identity, store, store.driver._credentials.keys)


def test_cancelled_task_does_not_wait_for_credentials(server, web_identity):
    asked, ended = threading.Event(), threading.Event()
    hang = Fault(lambda s, c, r: asked.set() or (s.stopped.wait(60) and False))
    web_identity.faults = [hang]
    store = open_s3(server)

    def task():
        try:
            store.driver.list_names("")
        finally:
            ended.set()

    future = Executor(1).run_all([task], lambda: None)
    assert asked.wait(30)
    future.cancel()
    assert ended.wait(25)  # The service would be waited for longer.
    hang.times = 0
    assert store.list().result() == []


def test_missing_package_is_named_where_files_hint_at_credentials(server, keyless, monkeypatch):
    (keyless / "config").write_text("[default]\nregion=x\n")
    monkeypatch.setattr("gpustore.registry.is_installed", lambda module: False)
    with pytest.raises(UnsupportedError, match=r"botocore: pip install 'gpustore\[cloud\]'"):
        open_s3(server)
