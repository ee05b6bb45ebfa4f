"""One record alone, as a decoder takes it."""

from varve.shapes.feed.decoders import Decoded, Decoder


def decode(decoder: Decoder, key: bytes | None, value: bytes | None) -> Decoded:
    (only,) = decoder.decode_many([(key, value)])
    return only
