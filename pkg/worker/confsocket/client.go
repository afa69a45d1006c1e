package confsocket

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

const (
	// maxSet bounds the body of a request, bytes. It is enough for 65,536 peers, the limit of a
	// device, with 8 allowed IPs each.
	maxSet = 64 << 20
	// largeSet is the size in bytes above which bodies are read one at a time, so that several
	// clients cannot exhaust the memory.
	largeSet = 1 << 20
	// maxClients bounds the clients that are connected at the same time.
	maxClients = 32
	// requestPatience is the time in which a client must complete a request that it began.
	// answerPatience is the time in which it must read the answer.
	requestPatience = 10 * time.Second
	answerPatience  = 10 * time.Second
)

// clients are the clients of a configuration socket. The zero value is ready.
type clients struct {
	mu sync.Mutex
	// idle are the clients that must send next, the longest idle first. busy counts the clients
	// whose operation is running.
	idle []io.Closer
	busy int
	// large is held while a body above largeSet is read and applied.
	large sync.Mutex
}

// enter adds a new client, which is idle. If there are too many clients, it closes the longest idle
// one. If all are busy, it closes the new client and returns false.
func (c *clients) enter(client io.Closer) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.idle)+c.busy >= maxClients {
		if len(c.idle) == 0 {
			client.Close()
			return false
		}
		c.idle[0].Close()
		c.idle = c.idle[1:]
	}
	c.idle = append(c.idle, client)
	return true
}

// begin makes an idle client busy. It returns false if enter has closed the client.
func (c *clients) begin(client io.Closer) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.remove(client) {
		return false
	}
	c.busy++
	return true
}

// end makes a busy client idle.
func (c *clients) end(client io.Closer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.busy--
	c.idle = append(c.idle, client)
}

// leave removes an idle client.
func (c *clients) leave(client io.Closer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.remove(client)
}

// remove removes a client from idle and reports whether it was there. The caller holds mu.
func (c *clients) remove(client io.Closer) bool {
	for i := range c.idle {
		if c.idle[i] == client {
			c.idle = append(c.idle[:i:i], c.idle[i+1:]...)
			return true
		}
	}
	return false
}

// Serve answers the clients of l until l is closed or its deadline passes.
func (s *Server) Serve(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go s.handle(c)
	}
}

// deadliner is a client that supports deadlines, as all but clients of tests do.
type deadliner interface {
	SetDeadline(t time.Time) error
}

// within sets the deadline of a client to d from now; 0 removes the deadline.
func within(c io.ReadWriteCloser, d time.Duration) {
	if c, ok := c.(deadliner); ok {
		var end time.Time
		if d != 0 {
			end = time.Now().Add(d)
		}
		_ = c.SetDeadline(end)
	}
}

// handle answers one client until the client disconnects, violates the protocol or is too slow.
func (s *Server) handle(c io.ReadWriteCloser) {
	defer c.Close()
	if !s.clients.enter(c) {
		s.refuse()
		return
	}
	defer s.clients.leave(c)

	r := bufio.NewReader(c)
	for {
		within(c, 0)
		line, err := r.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			s.refuse()
		}
		if err != nil {
			return
		}
		op := string(line)

		body := request{server: s, renew: func() { within(c, requestPatience) }}
		body.renew()
		if err := body.read(r); err != nil {
			body.done()
			s.refuse()
			return
		}
		if !s.clients.begin(c) {
			body.done()
			s.refuse()
			return
		}
		answer := s.answer(op, body.text)
		body.done()
		s.clients.end(c)
		if answer == nil {
			return
		}

		within(c, answerPatience)
		if _, err := c.Write(answer); err != nil {
			return
		}
	}
}

// request is the body of a request.
type request struct {
	server *Server
	// renew sets the client's deadline to requestPatience from now.
	renew func()
	text  []byte
	large bool
}

// read reads the lines of the body, and the empty line that ends it.
func (q *request) read(r *bufio.Reader) error {
	for {
		line, err := r.ReadSlice('\n')
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return err
		}
		whole := err == nil && (len(q.text) == 0 || q.text[len(q.text)-1] == '\n')
		if whole && len(line) == 1 {
			return nil
		}
		if len(q.text)+len(line) > maxSet {
			return fmt.Errorf("configuration is larger than %d bytes", maxSet)
		}
		if len(q.text)+len(line) > largeSet && !q.large {
			q.server.clients.large.Lock()
			q.large = true
			q.renew()
		}
		q.text = append(q.text, line...)
	}
}

// done zeroes the text, which may hold keys, and lets the next large request be read.
func (q *request) done() {
	clear(q.text)
	q.text = nil
	if q.large {
		q.server.clients.large.Unlock()
	}
}
