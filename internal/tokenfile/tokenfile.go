// Package tokenfile has clients of the API server read the file of their bearer token again as soon
// as the server refuses the token.
//
// client-go alone remembers the content of the file for 50 seconds (fileTokenSource in
// k8s.io/client-go/transport/token_source.go): a node whose token was renewed after it had expired
// would be refused for that long.
package tokenfile

import (
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
)

// Renew changes a configuration whose token is in a file; others stay as they are. An answer of 401
// makes the next request read the file, so the file is read no more often than requests are made.
func Renew(cfg *rest.Config) {
	if cfg.BearerTokenFile == "" {
		return
	}
	source := transport.NewCachedFileTokenSource(cfg.BearerTokenFile)
	cfg.Wrap(transport.ResettableTokenSourceWrapTransport(source))
	cfg.BearerToken, cfg.BearerTokenFile = "", ""
}
