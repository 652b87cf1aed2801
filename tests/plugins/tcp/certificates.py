"""Certificate authorities for tests."""

from __future__ import annotations

import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from insync.transport import Identity, TlsFiles

DAY = datetime.timedelta(days=1)


class Authority:
    """An authority with its folder; `files` issues certificates."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        basic = x509.BasicConstraints(ca=True, path_length=None)
        root = self._builder(self._name, self._key, DAY).add_extension(basic, critical=True)
        self._path = folder / f"{name}.pem"
        self._path.write_bytes(_pem(root.sign(self._key, hashes.SHA256())))

    def files(self, uri: str, *more: str, valid: datetime.timedelta = DAY) -> TlsFiles:
        """Certificate and key for a URI, or several; a negative `valid` is a certificate that has expired."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(each) for each in (uri, *more)])
        builder = self._builder(x509.Name([]), key, valid).add_extension(names, critical=True)
        base = self._folder / uri.replace("/", "_").replace(":", "")
        base.with_suffix(".crt").write_bytes(_pem(builder.sign(self._key, hashes.SHA256())))
        base.with_suffix(".key").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return TlsFiles(str(base.with_suffix(".crt")), str(base.with_suffix(".key")), str(self._path))

    def files_for(self, identity: Identity) -> TlsFiles:
        who = identity.node_id if identity.node_id >= 0 else "client"
        return self.files(f"isr://{identity.cluster_id or 'kit'}/{who}")

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, valid: datetime.timedelta
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 2 * DAY)
            .not_valid_after(now + valid)
        )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
