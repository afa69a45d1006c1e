package crypt

// goldenHeader is the SHA-256 of the header of a data key of 64 bytes 0x01 and testID.
const goldenHeader = "a867bbeeae582390c17f4c042ec260461ee4fa26d76d95482d1b06ffcc2cff47"
