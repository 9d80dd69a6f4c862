"""Certificates for servers on loopback, made by an authority of the test's own."""

import datetime
import ipaddress
import ssl

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.kvstores.http.http_server import HttpServer

__all__ = ["Authority", "TlsServer"]


class Authority:
    """Signs certificates; what trusts it is told by `path`, a file in PEM."""

    def __init__(self, folder):
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "An authority")])
        certificate = self._certificate(self._name, self._key, -1, 1, [], authority=True)
        self.path = folder / "authority.pem"
        self.path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def _certificate(self, name, key, first_day, last_day, names, *, authority=False):
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + datetime.timedelta(days=first_day))
            .not_valid_after(now + datetime.timedelta(days=last_day))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(self._key, hashes.SHA256())

    def context(self, *, host="localhost", address="127.0.0.1", first_day=-1, last_day=1):
        """What a server with a certificate for these names uses."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = [x509.DNSName(host), x509.IPAddress(ipaddress.ip_address(address))]
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
        certificate = self._certificate(subject, key, first_day, last_day, names)
        path = self._folder / f"{host}.pem"
        path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
            + certificate.public_bytes(serialization.Encoding.PEM)
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(path)
        return context


class TlsServer(HttpServer):
    """The same over TLS."""

    def __init__(self, context, values=None):
        self._context = context
        super().__init__(values)

    @property
    def url(self):
        return f"https://localhost:{self.port}"

    def _serve(self, connection):
        try:
            encrypted = self._context.wrap_socket(connection, server_side=True)
        except OSError:
            return
        finally:
            self._open.discard(connection)
        self._open.add(encrypted)
        super()._serve(encrypted)
