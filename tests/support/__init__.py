"""What the tests share: a real daemon process and a raw client; nothing here imports jetbus."""
