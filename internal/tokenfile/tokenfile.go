// Package tokenfile has clients of the API server read the file of their bearer token again as soon
// as the server refuses the token.
//
// Without this package, client-go caches the content of the file for 50 seconds (fileTokenSource in
// k8s.io/client-go/transport/token_source.go). If a token is renewed after it expired, the API
// server would refuse the node's requests for that time.
package tokenfile

import (
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
)

// Renew changes cfg so that the next request after a response with status 401 reads the token file
// again. It does nothing if cfg has no token file.
func Renew(cfg *rest.Config) {
	if cfg.BearerTokenFile == "" {
		return
	}
	source := transport.NewCachedFileTokenSource(cfg.BearerTokenFile)
	cfg.Wrap(transport.ResettableTokenSourceWrapTransport(source))
	cfg.BearerToken, cfg.BearerTokenFile = "", ""
}
