"""timeball.config"""
