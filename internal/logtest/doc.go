// Package logtest keeps what programs log for tests to read. Start reading at Buffer.
package logtest
