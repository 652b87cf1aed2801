import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from insync.transport import URL
from insync.transport.urls import advertised, check_options, join_host_port, split_host_port


@given(
    st.from_regex(r"[a-z][a-z0-9+.-]{0,8}", fullmatch=True),
    st.from_regex(r"[a-z0-9.:\[\]]{0,12}", fullmatch=True),
    st.from_regex(r"(/[a-z0-9/]{0,12})?", fullmatch=True),
    st.dictionaries(st.sampled_from("abc"), st.from_regex(r"[a-z0-9]{0,4}", fullmatch=True)),
)
def test_urls_round_trip(scheme, authority, path, options):
    url = URL(scheme, authority, path, tuple(options.items()))
    assert URL.parse(str(url)) == url


@pytest.mark.parametrize(
    "text", ["", "host:9000", "TCP://h:1", "tcp:/h:1", "tcp://h:1?a", "tcp://h:1?=b", "t://h?a=1&a=2"]
)
def test_what_is_no_url_is_refused(text):
    with pytest.raises(ValueError):
        URL.parse(text)


@given(st.sampled_from(["localhost", "10.0.0.1", "::1", "fe80::1%eth0"]), st.integers(0, 65535))
def test_hosts_and_ports_round_trip(host, port):
    assert split_host_port(URL("tcp", join_host_port(host, port))) == (host, port)


def test_a_slip_in_an_option_does_not_pass():
    with pytest.raises(ValueError, match="unknown option 'nodlay'; known here: nodelay"):
        check_options(URL.parse("tcp://h:1?nodlay=1"), ("nodelay",))


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("node3.example.org", ("node3.example.org", None)),
        ("localhost:9650", ("localhost", 9650)),
        ("[2001:db8::1]", ("2001:db8::1", None)),
        ("[2001:db8::1]:65535", ("2001:db8::1", 65535)),
    ],
)
def test_an_advertised_address_has_a_host_and_perhaps_a_port(text, address):
    assert advertised(URL.parse(f"tcp://0.0.0.0:1?contact={text}")) == address
    assert advertised(URL.parse("tcp://0.0.0.0:1")) is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is not HOST, HOST:PORT"),
        ("h:", "is not HOST, HOST:PORT"),
        (":9000", "is not HOST, HOST:PORT"),
        ("h:x", "is not HOST, HOST:PORT"),
        ("h:1:2", "is not HOST, HOST:PORT"),
        ("::1", "is not HOST, HOST:PORT"),
        ("tcp:h", "is not HOST, HOST:PORT"),
        ("[h]:1", "'h' is not an IPv6 address"),
        ("[]:1", "is not HOST, HOST:PORT"),
        ("h:0", "a port is a number from 1 to 65535"),
        ("h:65536", "a port is a number from 1 to 65535"),
        ("0.0.0.0:1", "nobody can dial 0.0.0.0"),
        ("[::]", "nobody can dial ::"),
    ],
)
def test_an_address_that_nobody_can_dial_is_not_advertised(text, why):
    with pytest.raises(ValueError, match=f"contact={re.escape(text)}.*{re.escape(why)}"):
        advertised(URL.parse(f"tcp://h:1?contact={text}"))
