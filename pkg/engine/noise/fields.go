package noise

import "time"

// Fields reads or writes values in a fixed order. The Visit methods pass to it the values that
// another process needs to take over from this one.
type Fields interface {
	// Raw reads or writes b in place, without another copy, because b may be secret.
	Raw(b []byte)
	Flag(b *bool)
	Duration(d *time.Duration)
}

// Visit visits the keys of a peer and the initiation that waits for its response.
func (s *Secrets) Visit(f Fields) {
	f.Raw(s.Preshared[:])
	f.Raw(s.staticStatic[:])
	f.Raw(s.initiation.hash[:])
	f.Raw(s.initiation.chain[:])
	f.Raw(s.initiation.ephemeral[:])
	f.Flag(&s.Waiting)
	f.Flag(&s.Usable)
}

// Visit visits the secret of the cookies.
func (c *Checker) Visit(f Fields) {
	f.Raw(c.secret[:])
	f.Duration(&c.made)
	f.Flag(&c.valid)
}

// Visit visits the peer's cookie, and MAC1 of the message to which the next cookie reply belongs.
func (s *Stamper) Visit(f Fields) {
	f.Raw(s.last[:])
	f.Flag(&s.sent)
	f.Raw(s.cookie[:])
	f.Duration(&s.got)
	f.Flag(&s.present)
}
